"""Tables whose rows are not in this process's memory, but on disk or in the memory of Dask workers.

`blocks` and `select` read rows in the order that is fastest for the storage, not in the order of the arguments.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import ChunkedMatrix
from securevfl.data.scaling import Scaling
from securevfl.data.schedule import Rows

MAX_BATCH_BYTES = 128 << 20
"""Maximum size of a batch that is read into memory; larger batches are read in chunks."""
READ_VALUES = 1 << 20
"""Number of values of a table that are read at a time, where all rows are read."""


class ExternalTable(ABC):
    """A table that is used like an array: it has `shape` and `len`, and X[rows] returns a copy in float64."""

    ndim = 2
    shape: tuple[int, int]
    is_remote = False  # True if the rows are in the memory of other processes

    def __len__(self) -> int:
        return self.shape[0]

    @abstractmethod
    def __getitem__(self, rows: Rows | slice) -> Floats:
        """Read these rows into the memory of this process, and return them as float64 (k, d)."""

    def scaled_matrix(self, rows: Rows, scaling: Scaling) -> ChunkedMatrix | None:
        """Return these rows, scaled, as a matrix that is read in chunks.

        None means that the caller should read the rows with `X[rows]` instead, because they fit into memory.
        """
        if len(rows) * self.shape[1] * 8 <= MAX_BATCH_BYTES:
            return None
        return ChunkedMatrix.local(ScaledExternalRows(self, rows, scaling))

    def blocks(self, rows: Rows) -> Iterator[Floats]:
        """Yield the given rows as arrays (k, d), each row once, in the order in which they are stored."""
        step = max(1, READ_VALUES // max(1, self.shape[1]))
        for start in range(0, len(rows), step):
            yield self[rows[start : start + step]]

    def select(self, rows: Rows, columns: Sequence[int]) -> Floats:
        """Return the given columns of the given rows (k, c), reading the table once from beginning to end."""
        step = max(1, READ_VALUES // max(1, self.shape[1]))
        pieces = [self[rows[start : start + step]][:, list(columns)] for start in range(0, len(rows), step)]
        return np.concatenate(pieces) if pieces else np.empty((0, len(columns)))


class ScaledExternalRows:
    """Some rows (m, d) of a table, used like an array. A slice of it reads these rows and scales them."""

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


def row_blocks(X: Floats | ExternalTable) -> Iterator[Floats]:
    """Yield all rows of a table (n, d) as arrays (k, d), in the order in which they are stored."""
    if isinstance(X, ExternalTable):
        yield from X.blocks(np.arange(len(X)))
        return
    step = max(1, READ_VALUES // max(1, X.shape[1]))
    for start in range(0, len(X), step):
        yield X[start : start + step]


def as_slice(rows: Rows) -> Rows | slice:
    """Convert consecutive row numbers to a slice, which is faster to read; return other row numbers unchanged."""
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all():
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows
