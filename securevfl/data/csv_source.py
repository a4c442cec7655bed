"""A CSV file that is read in pieces (`securevfl.data.table_source`).

The file is read four times: for ids and labels, for columns of numbers, for the texts of all other columns, and for its
rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from securevfl.data.column_types import ColumnType, declared_type
from securevfl.data.csv_file import CsvFile
from securevfl.data.csv_table import encode_texts, may_be_numbers, read_numbers
from securevfl.data.raw_columns import ColumnValues, NumberColumn, Place, RawColumn, TextColumn, convert_column
from securevfl.data.readers import check_names
from securevfl.data.table_source import TableSource
from securevfl.errors import TableError


class CsvSource(TableSource):
    """A party's table in a CSV file."""

    numbers_from = "values"

    def _open(self, path: Path, id_column: str) -> list[str]:
        self._file = CsvFile(path)
        self.delimiter = self._file.delimiter
        check_names(self._file.names, id_column)
        return self._file.names

    def _inspect_columns(self) -> None:
        """Do nothing, since a CSV file declares no types."""

    @cached_property
    def _ids_and_labels(self) -> Any:
        """The id columns and the label column, as an Arrow table."""
        return self._file.table([*self._key.names, *([self._label] if self.labelled else [])])

    @property
    def rows(self) -> int:
        """The number of rows."""
        return int(self._ids_and_labels.num_rows)

    def _read(self, columns: Sequence[str]) -> Any:
        return self._ids_and_labels.select(list(columns))

    def _batches(self, columns: Sequence[str], rows: int) -> Iterator[Any]:
        return self._file.batches(columns)

    def _convert(self, folder: Path) -> dict[int, ColumnValues | TableError]:
        declared = {name: declared_type(self._declared, name) for name in self.columns}
        marked = [name for name, kind in declared.items() if kind != ColumnType() and may_be_numbers(kind)]
        texts = [name for name, kind in declared.items() if not may_be_numbers(kind)]
        texts += self._read_numbers([name for name in self.columns if name not in texts], marked, folder)
        codes = self._read_texts(texts, folder)
        converted: dict[int, ColumnValues | TableError] = {}
        for j, name in enumerate(self.columns):
            raw: RawColumn
            if name in codes:
                positions = np.fromfile(folder / f"codes-{j}", np.int32).astype(np.intp)
                raw = TextColumn(list(codes.pop(name)), positions, "csv", self.delimiter)
            elif name in marked:
                raw = NumberColumn(np.fromfile(folder / f"numbers-{j}", np.float64))
            else:
                continue
            try:
                result = convert_column(Place(None, name), raw, declared[name])
            except TableError as error:
                converted[j] = error
                continue
            if result.type.origin == "file":
                result = result._replace(type=result.type.model_copy(update={"origin": "values"}))
            converted[j] = self._store(j, result, folder)
        return converted

    def _read_numbers(self, names: list[str], marked: Sequence[str], folder: Path) -> list[str]:
        """Read the columns `names` as numbers, and write the columns in `marked` to files in `folder`.

        Return the names of the columns that contain other values than numbers. They are then read again, as texts.
        """
        failed = list[str]()
        if not names:
            return failed
        for batch in self._file.batches(names):
            values = np.empty(batch.num_rows)
            for name, column in zip(names, batch.columns, strict=True):
                if name in failed:
                    continue
                if not read_numbers(column, values):
                    failed.append(name)
                elif name in marked:
                    with (folder / f"numbers-{self.columns.index(name)}").open("ab") as file:
                        values.tofile(file)
        return failed

    def _read_texts(self, names: list[str], folder: Path) -> dict[str, dict[str, int]]:
        """Read columns as texts, and write each row's text to a file as its position among the distinct texts.

        Return the distinct texts of each column with their positions.
        """
        codes: dict[str, dict[str, int]] = {name: {} for name in names}
        for batch in self._file.batches(names) if names else ():
            for name, column in zip(names, batch.columns, strict=True):
                numbers = np.nan_to_num(encode_texts(column, codes[name]), nan=-1).astype(np.int32)
                with (folder / f"codes-{self.columns.index(name)}").open("ab") as file:
                    numbers.tofile(file)
        return codes
