"""Tall matrices: more rows than one process should hold at a time, cut into stretches that work is sent to.

A `ChunkedMatrix` (n x d) is asked for what training asks of an array: its shape, its length, X @ theta, X.T @ g, X.T @
X. Each of these goes to all its parts at once and comes back as one array of n, or of d x c, numbers; rows stay where
they are. A part is here, in this process, or wherever an engine keeps it (`securevfl.runtime.worker_backend`): work is
a function of the stretch of rows, and of arguments that travel.

Within a stretch rows are read by blocks of some `BLOCK_NUMBERS` numbers, so that neither X nor a scaled copy of it is
ever whole in memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats

P = ParamSpec("P")
T = TypeVar("T")

BLOCK_NUMBERS = 1 << 21  # numbers of a matrix in memory at a time
MAX_MATERIALIZED_NUMBERS = 1 << 23  # numbers of a matrix that is made when it is read, up to which it is made once


class RowSource(Protocol):
    """Rows (n x d) that are read by slices: an array, or a table that scales or reads them when they are asked for."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Floats: ...


class SparseRows(ABC):
    """Rows (n x d) made when they are read, of which everyone may know where there are only zeros."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and columns, n and d."""

    @abstractmethod
    def part(self, start: int, stop: int) -> tuple[NDArray[np.intp], Floats]:
        """Return the columns (k,) in which these rows may have entries, and the rows in them (stop - start x k)."""

    @abstractmethod
    def columns(self, start: int, stop: int) -> NDArray[np.intp]:
        """Return the columns (k,) in which these rows may have entries, whatever the numbers are."""

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice, /) -> Floats:
        start, stop, _ = rows.indices(len(self))
        columns, part = self.part(start, stop)
        found = np.zeros((stop - start, self.shape[1]))
        found[:, columns] = part
        return found

    def backward(self, g: Floats) -> Floats:
        """X^T g (d x c)."""
        total = np.zeros((self.shape[1], g.shape[1]))
        step = max(1, BLOCK_NUMBERS // self.shape[1])
        for start in range(0, len(self), step):
            stop = min(start + step, len(self))
            columns, part = self.part(start, stop)
            total[columns] += part.T @ g[start:stop]
        return total


class RowChunk:
    """Consecutive rows of a matrix in the process that holds them, and what that process keeps beside them."""

    def __init__(self, rows: RowSource) -> None:
        self.rows = rows
        self.cache: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def __getstate__(self) -> dict[str, Any]:
        """Return what travels to another process: what is kept stays."""
        return self.__dict__ | {"cache": {}}

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that are in memory."""
        return int(getattr(self.rows, "nbytes", 0))

    def blocks(self) -> Iterator[tuple[slice, Floats]]:
        """Its rows (k x d) block by block, each with its place in the stretch."""
        step = max(1, BLOCK_NUMBERS // self.rows.shape[1])
        for start in range(0, len(self), step):
            block = slice(start, min(len(self), start + step))
            yield block, self.rows[block]


class MatrixPart(ABC):
    """A stretch of rows [start, stop) of a matrix, wherever it lies."""

    start: int
    stop: int
    min_blocks = 1  # sample blocks of a ciphertext that are worth a call

    @abstractmethod
    def run(self, work: Callable[Concatenate[RowChunk, P], T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run work on the stretch, where it lies. Parts of one matrix run at the same time where they can."""

    @property
    def place(self) -> str:
        """Which process it lies in; empty for this one."""
        return ""

    def spent(self) -> float:
        """Processor seconds of other processes on it since this was last asked."""
        return 0.0


class LocalPart(MatrixPart):
    """A stretch in this process, worked on in the calling thread."""

    def __init__(self, start: int, rows: RowSource) -> None:
        self.start, self.stop = start, start + len(rows)
        self.chunk = RowChunk(rows)

    def run(self, work: Callable[Concatenate[RowChunk, P], T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        done: Future[T] = Future()
        done.set_result(work(self.chunk, *args, **kwargs))
        return done


class ChunkedMatrix:
    """A matrix (n x d) in parts, which follow each other without a gap."""

    ndim = 2

    def __init__(self, parts: Sequence[MatrixPart], columns: int) -> None:
        self.parts = tuple(parts)
        self.shape = self.parts[-1].stop, columns

    @classmethod
    def local(cls, rows: RowSource) -> ChunkedMatrix:
        """Make a matrix of one part, in this process."""
        return cls([LocalPart(0, rows)], rows.shape[1])

    def __len__(self) -> int:
        return self.shape[0]

    def __matmul__(self, theta: Floats) -> Floats:
        """X theta (n x c)."""
        found = [part.run(forward, theta) for part in self.parts]
        return np.concatenate([each.result() for each in found])

    @property
    def T(self) -> TransposedMatrix:
        """X^T, of which X^T g and X^T X can be asked."""
        return TransposedMatrix(self)

    def sum(self, axis: Literal[0]) -> Floats:
        """Sum each column (d,)."""
        ones = np.ones((len(self), 1))
        return (self.T @ ones)[:, 0]

    def makespan(self) -> float:
        """Processor seconds that other processes have spent since this was last asked, where they work side by side."""
        spent: dict[str, float] = defaultdict(float)
        for part in self.parts:
            spent[part.place] += part.spent()
        return max(spent.values())


def materialize(rows: RowSource) -> Floats | ChunkedMatrix:
    """Rows that are made when they are read: all of them now if they are few, else as a matrix of one part, and so
    where everyone knows of zeros."""
    return rows[:] if is_small(rows) and not isinstance(rows, SparseRows) else ChunkedMatrix.local(rows)


def is_small(rows: RowSource) -> bool:
    """Whether rows that are made when they are read may be made all at once."""
    n, d = rows.shape
    return n * d <= MAX_MATERIALIZED_NUMBERS


def as_array(matrix: Floats | ChunkedMatrix) -> Floats | None:
    """Return the matrix as an array, where it is one or is made when it is read, here, of few rows; else None."""
    if not isinstance(matrix, ChunkedMatrix):
        return matrix
    part = matrix.parts[0]
    if len(matrix.parts) > 1 or not isinstance(part, LocalPart) or not isinstance(part.chunk.rows, SparseRows):
        return None
    return part.chunk.rows[:] if is_small(part.chunk.rows) else None


class TransposedMatrix:
    """The transpose of a tall matrix."""

    def __init__(self, tall: ChunkedMatrix) -> None:
        self._tall = tall

    def __matmul__(self, g: Floats | ChunkedMatrix) -> Floats:
        """X^T g (d x c) of an array g (n x c), or X^T X (d x d) of X."""
        parts = self._tall.parts
        if isinstance(g, ChunkedMatrix):
            if g is not self._tall:
                raise TypeError("a product with the same tall matrix was expected, another one came")
            found = [part.run(gram) for part in parts]
        else:
            found = [part.run(backward, g[part.start : part.stop]) for part in parts]
        return np.sum([each.result() for each in found], axis=0)


def forward(stretch: RowChunk, theta: Floats) -> Floats:
    """X theta (k x c) of a stretch of k rows."""
    return np.concatenate([X @ theta for _, X in stretch.blocks()])


def backward(stretch: RowChunk, g: Floats) -> Floats:
    """X^T g (d x c) of a stretch, of its rows of g (k x c)."""
    if isinstance(stretch.rows, SparseRows):
        return stretch.rows.backward(g)
    total = np.zeros((stretch.rows.shape[1], g.shape[1]))
    for block, X in stretch.blocks():
        total += X.T @ g[block]
    return total


def gram(stretch: RowChunk) -> Floats:
    """X^T X (d x d) of a stretch."""
    total = np.zeros((stretch.rows.shape[1],) * 2)
    for _, X in stretch.blocks():
        total += X.T @ X
    return total
