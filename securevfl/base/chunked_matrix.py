"""Matrices with more rows than one process should hold, divided into chunks of rows that functions are sent to.

A `ChunkedMatrix` X (n, d) supports the operations that training needs: shape, length, X @ theta, X.T @ g and X.T @ X
for weights theta (d, c) and residuals g (n, c). A part is one chunk of consecutive rows, in this process or at a worker
process (`securevfl.runtime.worker_backend`). Each operation is sent to all parts at the same time as a function of the
chunk, and returns an array; the rows stay where they are.

The rows of a chunk are read in blocks of `BLOCK_NUMBERS` numbers, so that neither X nor a scaled copy of it is ever in
memory completely.
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

BLOCK_NUMBERS = 1 << 21
"""Maximum number of matrix entries in memory at a time."""
MAX_MATERIALIZED_NUMBERS = 1 << 23
"""A matrix with at most this number of entries is computed once and stored as an array."""


class RowSource(Protocol):
    """Rows (n, d) that are read by slices: an array, or a table that loads or scales rows when they are read."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The numbers of rows and columns, n and d."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Floats: ...


class SparseRows(ABC):
    """Rows (n, d) that are computed when they are read; the positions of their zeros are public."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and columns, n and d."""

    @abstractmethod
    def part(self, start: int, stop: int) -> tuple[NDArray[np.intp], Floats]:
        """Return the columns that may be nonzero in rows [start, stop), and the values of these columns.

        Args:
            start: index of the first row.
            stop: index of the row after the last one.

        Returns:
            The indices (k,) of the k columns, and their values (stop - start, k).
        """

    @abstractmethod
    def columns(self, start: int, stop: int) -> NDArray[np.intp]:
        """Return the indices (k,) of the columns that `part` returns. They do not depend on the values."""

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice, /) -> Floats:
        start, stop, _ = rows.indices(len(self))
        columns, entries = self.part(start, stop)
        dense = np.zeros((stop - start, self.shape[1]))
        dense[:, columns] = entries
        return dense

    def backward(self, g: Floats) -> Floats:
        """Return X^T g (d, c) for these rows X and an array g (n, c)."""
        total = np.zeros((self.shape[1], g.shape[1]))
        step = max(1, BLOCK_NUMBERS // self.shape[1])
        for start in range(0, len(self), step):
            stop = min(start + step, len(self))
            columns, entries = self.part(start, stop)
            total[columns] += entries.T @ g[start:stop]
        return total


class RowChunk:
    """Consecutive rows of a matrix in the process that stores them, with values that this process caches.

    Args:
        rows: the rows (k, d).

    Attributes:
        rows: the rows (k, d).
        cache: cached values by key. They stay in this process when the chunk is pickled.
    """

    def __init__(self, rows: RowSource) -> None:
        self.rows = rows
        self.cache: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for another process, without the cache."""
        return self.__dict__ | {"cache": {}}

    @property
    def nbytes(self) -> int:
        """Number of bytes of the rows in memory; 0 if they are read from elsewhere."""
        return int(getattr(self.rows, "nbytes", 0))

    def blocks(self) -> Iterator[tuple[slice, Floats]]:
        """Yield the rows (k, d) block by block, each with its slice of the chunk."""
        step = max(1, BLOCK_NUMBERS // self.rows.shape[1])
        for start in range(0, len(self), step):
            block = slice(start, min(len(self), start + step))
            yield block, self.rows[block]


class MatrixPart(ABC):
    """Rows [start, stop) of a matrix, which this process or another one stores as one chunk.

    Attributes:
        start: index of the first row.
        stop: index of the row after the last one.
        min_blocks: minimum number of blocks of encrypted residuals g that are collected before one call to `run`
            multiplies them by these rows. It is larger for a worker process, because each call to it takes time.
    """

    start: int
    stop: int
    min_blocks = 1

    @abstractmethod
    def run(self, work: Callable[Concatenate[RowChunk, P], T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a function on the chunk, in the process that holds it. Parts of one matrix run in parallel if they can.

        Args:
            work: a function of the chunk and the arguments; it is pickled for another process.
            *args: positional arguments of the function.
            **kwargs: keyword arguments of the function.

        Returns:
            The result of the function.
        """

    @property
    def worker(self) -> str:
        """Name of the worker process that holds the chunk; empty for this process."""
        return ""

    def spent(self) -> float:
        """Return the processor seconds that other processes have spent on this part since the previous call."""
        return 0.0


class LocalPart(MatrixPart):
    """A chunk in this process. Functions run in the calling thread."""

    def __init__(self, start: int, rows: RowSource) -> None:
        self.start, self.stop = start, start + len(rows)
        self.chunk = RowChunk(rows)

    def run(self, work: Callable[Concatenate[RowChunk, P], T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a function on the chunk in the calling thread."""
        future: Future[T] = Future()
        future.set_result(work(self.chunk, *args, **kwargs))
        return future


class ChunkedMatrix:
    """A matrix (n, d) in consecutive parts.

    Args:
        parts: the parts in the order of their rows, without gaps.
        columns: the number d of columns.
    """

    ndim = 2

    def __init__(self, parts: Sequence[MatrixPart], columns: int) -> None:
        self.parts = tuple(parts)
        self.shape = self.parts[-1].stop, columns

    @classmethod
    def local(cls, rows: RowSource) -> ChunkedMatrix:
        """Return a matrix with one part, in this process."""
        return cls([LocalPart(0, rows)], rows.shape[1])

    def __len__(self) -> int:
        return self.shape[0]

    def __matmul__(self, theta: Floats) -> Floats:
        """Return X theta (n, c)."""
        futures = [part.run(forward, theta) for part in self.parts]
        return np.concatenate([future.result() for future in futures])

    @property
    def T(self) -> TransposedMatrix:
        """The transpose, which supports X^T g and X^T X."""
        return TransposedMatrix(self)

    def sum(self, axis: Literal[0]) -> Floats:
        """Return the sum of each column (d,)."""
        ones = np.ones((len(self), 1))
        return (self.T @ ones)[:, 0]

    def makespan(self) -> float:
        """Return the processor seconds of the busiest other process since the previous call."""
        seconds: dict[str, float] = defaultdict(float)
        for part in self.parts:
            seconds[part.worker] += part.spent()
        return max(seconds.values())


def materialize(rows: RowSource) -> Floats | ChunkedMatrix:
    """Return rows as an array if they are small and not sparse; otherwise as a matrix with one local part."""
    return rows[:] if is_small(rows) and not isinstance(rows, SparseRows) else ChunkedMatrix.local(rows)


def is_small(rows: RowSource) -> bool:
    """Return whether rows are small enough to be computed and stored as one array."""
    n, d = rows.shape
    return n * d <= MAX_MATERIALIZED_NUMBERS


def as_array(matrix: Floats | ChunkedMatrix) -> Floats | None:
    """Return a matrix as an array if that is cheap; otherwise None.

    It is cheap if the matrix is an array already, or if it consists of small sparse rows in this process.
    """
    if not isinstance(matrix, ChunkedMatrix):
        return matrix
    part = matrix.parts[0]
    if len(matrix.parts) > 1 or not isinstance(part, LocalPart) or not isinstance(part.chunk.rows, SparseRows):
        return None
    return part.chunk.rows[:] if is_small(part.chunk.rows) else None


class TransposedMatrix:
    """The transpose of a chunked matrix; it can only be multiplied."""

    def __init__(self, matrix: ChunkedMatrix) -> None:
        self._matrix = matrix

    def __matmul__(self, g: Floats | ChunkedMatrix) -> Floats:
        """Return X^T g (d, c) for an array g (n, c), or X^T X (d, d) for X.

        Args:
            g: an array (n, c), or X.

        Returns:
            The product.

        Raises:
            TypeError: if `g` is another chunked matrix.
        """
        parts = self._matrix.parts
        if isinstance(g, ChunkedMatrix):
            if g is not self._matrix:
                raise TypeError("a transpose can only be multiplied by an array or by the matrix itself")
            futures = [part.run(gram) for part in parts]
        else:
            futures = [part.run(backward, g[part.start : part.stop]) for part in parts]
        return np.sum([future.result() for future in futures], axis=0)


def forward(chunk: RowChunk, theta: Floats) -> Floats:
    """Return X theta (k, c) for a chunk of k rows."""
    return np.concatenate([X @ theta for _, X in chunk.blocks()])


def backward(chunk: RowChunk, g: Floats) -> Floats:
    """Return X^T g (d, c) for a chunk and its rows of g (k, c)."""
    if isinstance(chunk.rows, SparseRows):
        return chunk.rows.backward(g)
    total = np.zeros((chunk.rows.shape[1], g.shape[1]))
    for block, X in chunk.blocks():
        total += X.T @ g[block]
    return total


def gram(chunk: RowChunk) -> Floats:
    """Return X^T X (d, d) for a chunk."""
    total = np.zeros((chunk.rows.shape[1],) * 2)
    for _, X in chunk.blocks():
        total += X.T @ X
    return total
