"""Views of tables: some of their columns, or their columns as a preparation converts them.

Rows are converted whenever they are read, so that the prepared table is not held in memory. One text column can become
hundreds of 0/1 columns, so the prepared table can be many times larger than the original one.
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
    """Some columns of a table.

    Args:
        table: the table, which is on disk or at workers.
        positions: the positions of the columns.
    """

    def __init__(self, table: ExternalTable, positions: Sequence[int]) -> None:
        self.shape = len(table), len(positions)
        self._table, self._positions = table, list(positions)

    def __getitem__(self, rows: Rows | slice) -> Floats:
        return self._table[rows][:, self._positions]

    def blocks(self, rows: Rows) -> Iterator[Floats]:
        """Yield these rows in blocks (k, d), each row once, in the order that is read fastest."""
        return (block[:, self._positions] for block in self._table.blocks(rows))

    def select(self, rows: Rows, columns: Sequence[int]) -> Floats:
        """Return these columns of these rows (k, c); the table is read once."""
        return self._table.select(rows, [self._positions[column] for column in columns])


class PreparedTable(ExternalTable):
    """The columns of a table as a preparation converts them.

    Args:
        table: the table, which is on disk or at workers.
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
        """Yield these rows in blocks (k, d), each row once, in the order that is read fastest."""
        return map(self._apply, self._table.blocks(rows))

    def _apply(self, X: Floats) -> Floats:
        return self._by.apply(replace(self._columns, X=X))
