"""A Parquet file that is read in pieces (`securevfl.data.table_source`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from securevfl.data.column_types import ColumnType, Types, declared_type
from securevfl.data.raw_columns import ColumnValues, Place, check_kind, convert_column, raw_of_arrow
from securevfl.data.readers import arrow, category_names, errors_name, open_parquet, parquet_names, read_parquet
from securevfl.data.readers import stored_names as names_in_file
from securevfl.data.table_source import TableSource, is_exact_in_float32
from securevfl.errors import TableError


class ParquetSource(TableSource):
    """A party's table in a Parquet file.

    Args:
        name: the party.
        path: the file.
        id_column: the id column, or a list of columns as `--id` accepts it.
        label_column: the label column, at the active party.
        chosen: the columns to read, in this order, for a prediction.
        drop: columns that are not read.
        declared: the declared types of columns.

    Raises:
        TableError: if the file has no rows. DataError, as in `read_party`, if it cannot be used.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        *,
        id_column: str,
        label_column: str = "",
        chosen: Sequence[str] | None = None,
        drop: Sequence[str] = (),
        declared: Types | None = None,
    ) -> None:
        with errors_name(path):
            # buffered reads of column chunks: a row group may be as large as the file
            self._file = open_parquet(path, buffer_size=1 << 18, pre_buffer=False)
            names = parquet_names(self._file, id_column)
            super().__init__(
                name,
                path,
                names,
                id_column=id_column,
                label_column=label_column,
                chosen=chosen,
                drop=drop,
                declared=declared,
            )
            self._rows = int(self._file.metadata.num_rows)
            if not self._rows:
                raise TableError(
                    "the table has no rows below its header", "export the table again", code="SVFL-TABLE-EMPTY"
                )
            self._stored = names_in_file(self._file)
            pa, schema = arrow(), self._file.schema_arrow
            kinds = [schema.field(self._stored[column]).type for column in self.columns]
            self._plain = [self._is_plain(name, kind) for name, kind in zip(self.columns, kinds, strict=True)]
            if chosen is not None:
                for column, is_plain, kind in zip(self.columns, self._plain, kinds, strict=True):
                    if not is_plain:
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
        return self._rows

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
