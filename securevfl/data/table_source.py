"""A party's table in a file that is read in pieces: ids, labels, and batches of numbers, with the checks of `Party`.

The type of a column that does not hold plain numbers (but texts, dates, or values of a declared type) depends on all
its values. So these columns are converted one at a time before the first batch, and stored as float64 in temporary
files.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.data.arrow_values import float_values
from securevfl.data.column_types import ColumnType, Origin, check_declared
from securevfl.data.columns import Columns, combined, empty_columns_error, typed_columns
from securevfl.data.composite_ids import IdColumns, id_columns
from securevfl.data.duplicates import UniqueRows, unique_rows
from securevfl.data.id_keys import Keys, id_digests
from securevfl.data.raw_columns import ColumnValues
from securevfl.data.read_options import ReadOptions
from securevfl.data.readers import arrow_ids, errors_name, labels_of, table_columns, written_ids
from securevfl.data.validation import check_extremes, check_finite, check_labels
from securevfl.errors import TableError

BATCH_BYTES = 8 << 20
"""Bytes of rows in memory at a time."""
_IDS_PER_READ = 1 << 16  # number of ids that exist as Python objects at the same time


class TableSource(ABC):
    """A party's table in a file.

    Args:
        name: name of the party.
        path: the file.
        options: the columns to read, their types, and what happens to several rows of one id. If columns are chosen
            for a prediction, they may be constant, and all values must be present.

    Attributes:
        path: the file.
        columns: the names of the columns.
        labelled: whether the file has the label column.
        kind: numpy type of the numbers: float32 if that is exact for every column, float64 otherwise.
        constant: the columns that do not vary, once all numbers have been read.
        gaps: the columns that lack values, once all numbers have been read.
        table: the columns with their types and without rows, once `decide` has decided them.

    Raises:
        TableError: if the file has no rows, or columns are missing. A DataError (or a subclass) is raised if the file
            cannot be used.
    """

    delimiter = ""
    """The delimiter of the values of a CSV file."""
    numbers_from: Origin = "file"
    """Whether the file declares that plain numbers are numbers."""

    def __init__(self, name: str, path: Path, options: ReadOptions = ReadOptions()) -> None:
        self.path = path
        self.kind: np.dtype[Any] = np.dtype("<f8")
        self.constant: list[str] = []
        self.gaps: list[str] = []
        self._name, self._label, self._options = name, options.label_column, options
        self._chosen = options.chosen is not None
        self._declared = options.declared
        self._converted: dict[int, Path] = {}
        with errors_name(path):
            names = self._open(path, options.id_column)
            self._key = id_columns(options.id_column, names)
            self.columns = table_columns(names, self._key, options)
            check_declared(self._declared, names)
            self.labelled = self._label in names
            self.table = Columns(np.empty((0, len(self.columns))), self.columns)
            if not self.rows:
                raise TableError(
                    "the table has no rows below its header", "export the table again", code="SVFL-TABLE-EMPTY"
                )
            self._inspect_columns()

    @abstractmethod
    def _open(self, path: Path, id_column: str) -> list[str]:
        """Open the file, and return the checked names of its columns."""

    @abstractmethod
    def _inspect_columns(self) -> None:
        """Read the types that the file declares for its columns."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """The number of rows."""

    @abstractmethod
    def _read(self, columns: Sequence[str]) -> Any:
        """Read columns as an Arrow table."""

    @abstractmethod
    def _batches(self, columns: Sequence[str], rows: int) -> Iterator[Any]:
        """Yield these columns of all rows in Arrow record batches, of at most `rows` rows if the format allows it."""

    @abstractmethod
    def _convert(self, folder: Path) -> dict[int, ColumnValues | TableError]:
        """Convert columns that are not plain numbers, with temporary files in `folder`; return them by position."""

    def decide(self, folder: Path) -> None:
        """Decide the types of the columns. Columns other than plain numbers are written to files in the folder.

        Args:
            folder: a folder for temporary files, which must last until all numbers have been read.

        Raises:
            TableError: if a column does not fit its type; several problems are one error.
        """
        with errors_name(self.path):
            converted = self._convert(folder)
            problems = [result for result in converted.values() if isinstance(result, TableError)]
            if problems:
                raise combined(problems, str(self.path))
            number = ColumnValues(np.empty(0), ColumnType(type="number", origin=self.numbers_from))
            columns = [converted.get(j, number) for j in range(len(self.columns))]
            typed = [column for column in columns if isinstance(column, ColumnValues)]
            self.table = typed_columns(self.table.X, self.columns, typed, str(self.path))

    def _store(self, position: int, result: ColumnValues, folder: Path) -> ColumnValues:
        """Write the values of a converted column to a file in `folder`, and return the column without its values."""
        path = folder / f"column-{position}"
        np.ascontiguousarray(result.values, np.float64).tofile(path)
        self._converted[position] = path
        return result._replace(values=result.values[:0].copy())

    def ids(self) -> Any:
        """Read the ids of all rows as a chunked Arrow array; raise IdError if one is missing."""
        with errors_name(self.path):
            return arrow_ids(self._read(self._key.names), self._key)

    @property
    def key(self) -> IdColumns:
        """The columns that form a row's id, and how they are combined."""
        return self._key

    def written(self) -> Sequence[Any] | None:
        """Return the values of the id columns as the file has them.

        None if the rule for spellings (`securevfl.data.composite_ids`) does not compose the ids.
        """
        with errors_name(self.path):
            return written_ids(self._read(self._key.names), self._key) if self._key.by_rule else None

    @cached_property
    def _digests(self) -> tuple[Keys, UniqueRows | None]:
        """The digests of the ids of all rows, and the rows that are used if several rows have the same id."""
        column = self.ids()
        with errors_name(self.path):
            starts = range(0, len(column), _IDS_PER_READ)
            keys = id_digests(self._name, (column.slice(start, _IDS_PER_READ).to_pylist() for start in starts))
            return keys, unique_rows(f"party {self._name}", keys, self._options.duplicates)

    def keys(self) -> Keys:
        """Return the digests of the ids of all rows; raise IdError for missing, invalid or refused repeated ids."""
        return self._digests[0]

    @property
    def unique(self) -> UniqueRows | None:
        """The rows that are used if several rows have the same id; None if every id has one row."""
        return self._digests[1]

    def labels(self) -> NDArray[Any] | None:
        """Return the checked labels of all rows, or None without a label column."""
        if not self.labelled:
            return None
        with errors_name(self.path):
            y = labels_of(self._read([self._label]), self._label, self.delimiter)
            return check_labels(self._name, y, self.rows)

    def numbers(self, max_rows: int | None = None) -> Iterator[NDArray[Any]]:
        """Yield all rows in batches (k, d) of type `kind`. After the last batch, check the columns as `Party` does.

        Args:
            max_rows: the largest number of rows of a batch of a Parquet file.

        Yields:
            Batches.

        Raises:
            TableError: if a column is empty or holds infinities, or a chosen one lacks a value.
        """
        with errors_name(self.path):
            yield from self._numbers(max_rows)

    def _remains(self) -> NDArray[np.bool_] | None:
        """Return for each row (n,) whether it is used, which is one row of each id; None if all rows are used."""
        if self._options.duplicates == "refuse" or self.unique is None:
            return None
        remains = np.zeros(self.rows, bool)
        remains[self.unique.rows] = True
        return remains

    def _numbers(self, max_rows: int | None) -> Iterator[NDArray[Any]]:
        d, start, count = len(self.columns), 0, 0
        remains = self._remains()
        low, high, missing = np.full(d, np.inf), np.full(d, -np.inf), np.zeros(d, np.int64)
        plain = [(j, name) for j, name in enumerate(self.columns) if j not in self._converted]
        size = max(1, BATCH_BYTES // (8 * d))
        names = [name for _, name in plain] or [self._key.names[0]]
        for batch in self._batches(names, min(size, max_rows or size)):
            X = np.empty((batch.num_rows, d), self.kind)
            for position, (j, _) in enumerate(plain):
                X[:, j] = float_values(batch.column(position))
            for j, path in self._converted.items():
                X[:, j] = np.fromfile(path, np.float64, len(X), offset=8 * start)
            used = X if remains is None else X[remains[start : start + len(X)]]
            missing += np.isnan(used).sum(axis=0)
            count += len(used)
            low = np.fmin(low, np.fmin.reduce(used, axis=0, initial=np.inf))
            high = np.fmax(high, np.fmax.reduce(used, axis=0, initial=-np.inf))
            start += len(X)
            yield X
        if self._chosen:
            check_finite(self._name, np.isfinite(low) & np.isfinite(high) & (missing == 0), self.columns)
            return
        empty = [self.columns[j] for j in np.flatnonzero(missing == count)]
        if empty:
            raise empty_columns_error(empty)
        self.gaps = [self.columns[j] for j in np.flatnonzero(missing)]
        high = np.where((missing > 0) & (low == high), high + 1, high)  # its missing values make such a column vary
        self.constant = check_extremes(self._name, low, high, self.columns, count)


def is_exact_in_float32(values: Floats) -> bool:
    """Return whether float32 represents all of these values."""
    with np.errstate(over="ignore"):
        return bool(np.array_equal(values.astype(np.float32).astype(np.float64), values, equal_nan=True))
