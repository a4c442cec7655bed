"""Tables that compute their values from another table when rows are read: a selection of columns, or prepared columns.

Preparation can turn one text column into hundreds of 0/1 columns, so the prepared table would often not fit into
memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from securevfl.base.arrays import Floats
from securevfl.data.columns import Columns
from securevfl.data.external_table import ExternalTable
from securevfl.data.preparation import FittedPreparation
from securevfl.data.schedule import Rows


class MemoryTable(ExternalTable):
    """An array (n, d) in memory, with the interface of an external table."""

    def __init__(self, X: Floats) -> None:
        self.shape = len(X), X.shape[1]
        self._X = X

    def __getitem__(self, rows: Rows | slice) -> Floats:
        return self._X[rows]


class SelectedColumns(ExternalTable):
    """A table that consists of some columns of another table.

    Args:
        table: the other table, which is on disk or at workers.
        positions: the positions of the columns.
    """

    def __init__(self, table: ExternalTable, positions: Sequence[int]) -> None:
        self.shape = len(table), len(positions)
        self._table, self._positions = table, list(positions)

    def __getitem__(self, rows: Rows | slice) -> Floats:
        return self._table[rows][:, self._positions]

    def blocks(self, rows: Rows) -> Iterator[Floats]:
        """Yield the given rows as arrays (k, d), each row once, in the order in which they are stored."""
        return (block[:, self._positions] for block in self._table.blocks(rows))

    def select(self, rows: Rows, columns: Sequence[int]) -> Floats:
        """Return the given columns of the given rows (k, c), reading the table once."""
        return self._table.select(rows, [self._positions[column] for column in columns])


class PreparedTable(ExternalTable):
    """A table whose rows are prepared whenever they are read.

    Args:
        table: the unprepared table, which is on disk or at workers.
        by: the fitted preparation that converts the columns.
        columns: the names and types of the table's columns.
    """

    def __init__(self, table: ExternalTable, by: FittedPreparation, columns: Columns) -> None:
        self.shape = len(table), by.width
        self._table, self._by = table, by
        self._columns = columns

    def __getitem__(self, rows: Rows | slice) -> Floats:
        return self._apply(self._table[rows])

    def blocks(self, rows: Rows) -> Iterator[Floats]:
        """Yield the given rows, prepared, as arrays (k, d), each row once, in the order in which they are stored."""
        return map(self._apply, self._table.blocks(rows))

    def _apply(self, X: Floats) -> Floats:
        return self._by.apply(replace(self._columns, X=X))
