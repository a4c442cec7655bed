"""A Parquet file, an Arrow IPC file or a folder of these, read in pieces (`securevfl.data.table_source`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from securevfl.data.column_types import ColumnType, declared_type
from securevfl.data.raw_columns import ColumnValues, Place, check_kind, convert_column, raw_of_arrow
from securevfl.data.readers import arrow, category_names, open_parquet, parquet_names, read_parquet
from securevfl.data.readers import stored_names as names_in_file
from securevfl.data.table_source import TableSource, is_exact_in_float32
from securevfl.errors import TableError


class ParquetSource(TableSource):
    """A party's table in a Parquet file, an Arrow IPC file or a folder of these."""

    def _open(self, path: Path, id_column: str) -> list[str]:
        # column chunks are read in small buffers, because a row group may be as large as the file
        self._file = open_parquet(path, buffer_size=1 << 18, pre_buffer=False)
        return parquet_names(self._file, id_column)

    def _inspect_columns(self) -> None:
        self._stored = names_in_file(self._file)
        pa, schema = arrow(), self._file.schema_arrow
        kinds = [schema.field(self._stored[column]).type for column in self.columns]
        self._plain = [self._is_plain(name, kind) for name, kind in zip(self.columns, kinds, strict=True)]
        for column, is_plain, kind in zip(self.columns, self._plain, kinds, strict=True):
            if self._chosen and not is_plain:
                check_kind(Place(None, column), pa.dictionary(pa.int32(), kind))
        exact = {pa.float16(), pa.float32(), pa.bool_(), pa.int8(), pa.int16(), pa.uint8(), pa.uint16()}
        if all(kind in exact for is_plain, kind in zip(self._plain, kinds, strict=True) if is_plain):
            self.kind = np.dtype("<f4")

    def _is_plain(self, name: str, kind: Any) -> bool:
        """Return whether a column of this Arrow type holds numbers that need no conversion."""
        if self._stored[name] in category_names(self._file) or declared_type(self._declared, name) != ColumnType():
            return False
        try:
            check_kind(Place(None, name), kind)
        except TableError:
            return False
        return True

    @property
    def rows(self) -> int:
        """The number of rows."""
        return int(self._file.metadata.num_rows)

    def _read(self, columns: Sequence[str]) -> Any:
        return read_parquet(self._file, columns)

    def _batches(self, columns: Sequence[str], rows: int) -> Iterator[Any]:
        stored = [self._stored[name] for name in columns]
        try:
            for batch in self._file.iter_batches(rows, columns=stored):
                yield batch.select(stored)
        except arrow().ArrowException:
            raise TableError("the Parquet file is damaged", "export it again", code="SVFL-TABLE-UNREADABLE") from None

    def _convert(self, folder: Path) -> dict[int, ColumnValues | TableError]:
        converted: dict[int, ColumnValues | TableError] = {}
        for j, name in enumerate(self.columns):
            if self._plain[j]:
                continue
            place = Place(None, name)
            try:
                raw = raw_of_arrow(place, self._read([name])[name])
                result = convert_column(place, raw, declared_type(self._declared, name))
            except TableError as error:
                converted[j] = error
                continue
            if self.kind == np.dtype("<f4") and not is_exact_in_float32(result.values):
                self.kind = np.dtype("<f8")
            converted[j] = self._store(j, result, folder)
        return converted
