"""Tables whose rows are not in this process's memory: on disk, or in partitions at the workers of an engine."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import ChunkedMatrix
from securevfl.data.scaling import Scaling
from securevfl.data.schedule import Rows


class ExternalTable(ABC):
    """A table that is used like an array: it has `shape` and `len`, and X[rows] returns a copy in float64."""

    ndim = 2
    shape: tuple[int, int]
    is_remote = False  # True if the rows are in the memory of other processes

    def __len__(self) -> int:
        return self.shape[0]

    @abstractmethod
    def __getitem__(self, rows: Rows | slice) -> Floats:
        """Return these rows (k, d), in this process."""

    @abstractmethod
    def scaled_matrix(self, rows: Rows, scaling: Scaling) -> ChunkedMatrix | None:
        """Return these rows, scaled, as a matrix that is read in chunks.

        None means that the caller should read the rows with `X[rows]` instead.
        """


class ScaledExternalRows:
    """Some rows (m, d) of a table, scaled when they are read by slices."""

    def __init__(self, table: Floats | ExternalTable, rows: Rows | slice, scaling: Scaling) -> None:
        count = len(range(*rows.indices(len(table)))) if isinstance(rows, slice) else len(rows)
        self.shape = count, table.shape[1]
        self._table = table
        self._rows = rows
        self._scaling = scaling

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice, /) -> Floats:
        if isinstance(self._rows, slice):
            start, stop, step = rows.indices(len(self))
            first = self._rows.start or 0
            X = self._table[first + start : first + stop : step]
        else:
            X = self._table[self._rows[rows]]
        return self._scaling(X)


def as_slice(rows: Rows) -> Rows | slice:
    """Return consecutive row numbers as a slice, and any others unchanged."""
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all():
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows
