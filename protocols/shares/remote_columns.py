"""One party's columns at the workers of a cluster (such as Dask), which compute the products of a training on shares.

A party's rows X (n, d) stay at the workers; so do its steps W (n, d), computed from X and the step size. The party's
main process takes part in the protocol. It sends a value to the workers, and they send back a product with X or W:

    V, encrypted vectors of another party      -> encrypted X @ V or W^T V, to which the main process adds a mask
    theta, the party's shares of the weights   -> X @ theta mod 2^L
    g, the party's shares of the residuals     -> W^T g mod 2^L

A worker has no key and draws no random numbers. Equal calls return equal bytes, so a cluster may repeat them, for
example after a worker is lost, and no mask is used twice. Masks, keys, oblivious transfers and their tables, stored
records and connections stay in the main process. theta and g are single shares of secret numbers, and uniformly random
to a worker.

Products are computed for one block of rows at a time; theta and g have a column for each of c model outputs. If several
workers store rows of a block, each of them treats the other workers' rows as zeros, and the main process adds up their
results.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import ChunkedMatrix, RowChunk
from securevfl.crypto.share_ring import IntegerFactor, Integers, ShareRing, Words
from securevfl.crypto.share_scheme import ShareScheme
from securevfl.protocols.shares.column_blocks import ColumnBlocks, encode_columns
from securevfl.protocols.shares.fixed_point import FixedPointEncoding
from securevfl.protocols.shares.product_work import RemoteFactor
from securevfl.protocols.shares.shares_params import RowBlock
from securevfl.runtime.meter import Meter
from securevfl.runtime.worker_backend import RemoteObject, RemotePart

_MAX_PENDING_BLOCKS = 16  # number of blocks whose products X @ theta are requested before the first result is awaited

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


class WorkerRows:
    """The rows of a batch that one worker stores, as integers, which the worker computes when they are first needed.

    Args:
        chunk: the rows of the party's table that the worker stores.
        encoding: the fixed-point encoding.
        rate: the step size eta.
        P: the party's preconditioner (d, d), or None.
        n: the number of rows of the batch.
    """

    def __init__(self, chunk: RowChunk, encoding: FixedPointEncoding, rate: float, P: Floats | None, n: int) -> None:
        self.ring = ShareRing(encoding.bits)
        self._arguments = chunk, encoding, rate, P, n
        self._cache: dict[tuple[int, int], tuple[Integers, Integers]] = {}

    def __reduce__(self) -> tuple[type[WorkerRows], tuple[Any, ...]]:
        """Pickle the constructor's arguments without the cached integers."""
        return WorkerRows, self._arguments

    def __sizeof__(self) -> int:
        """Return the expected bytes of the cached integers: 2 for an entry of X, and usually 4 for an entry of W."""
        chunk = self._arguments[0]
        return 6 * len(chunk) * int(chunk.rows.shape[1])

    def integers(self, start: int, stop: int) -> tuple[Integers, Integers]:
        """Return X and W for the worker's rows `start` to `stop` (exclusive)."""
        if (start, stop) not in self._cache:
            chunk, encoding, rate, P, n = self._arguments
            self._cache[start, stop] = encode_columns(encoding, chunk.rows, slice(start, stop), rate, P, n)
        return self._cache[start, stop]


def block_sums(rows: WorkerRows, part: RemoteBlock, theta: Words) -> Words:
    """Return X @ theta (n, c) for the n rows of a block, with zeros for rows that other workers store."""
    sums = IntegerFactor(rows.ring, rows.integers(part.start, part.stop)[0]).times(theta)
    return np.pad(sums, ((part.before, part.after), (0, 0)))


def block_change(rows: WorkerRows, part: RemoteBlock, g: Words) -> Words:
    """Return W^T g (d, c) for the rows of a block that the worker stores; g (m, c) contains only these rows."""
    return IntegerFactor(rows.ring, rows.integers(part.start, part.stop)[1]).transpose_times(g)


def multiply_block(
    rows: WorkerRows, part: RemoteBlock, scheme: ShareScheme, sealed: bytes, *, steps: bool, transposed: bool
) -> bytes:
    """Multiply X or W of a block with encrypted vectors, with zeros for rows that other workers store.

    Args:
        rows: the rows that the worker stores, as integers.
        part: which rows of the block the worker stores.
        scheme: the encryption scheme of the products.
        sealed: the encrypted vectors V of a share holder.
        steps: True to multiply with W, False to multiply with X.
        transposed: whether to multiply with the transpose.

    Returns:
        The encrypted product.
    """
    factor = np.pad(rows.integers(part.start, part.stop)[steps], ((part.before, part.after), (0, 0)))
    return scheme.multiply(factor.T if transposed else factor, sealed)


@dataclass(frozen=True)
class RemoteBlock:
    """Those rows of a block that one worker stores: the worker's rows `start` to `stop`, exclusive.

    Attributes:
        start: the index of the first of these rows at the worker.
        stop: the index after the last of these rows at the worker.
        before: the number of rows of the block that precede these rows and are at other workers.
        after: the number of rows of the block that follow these rows and are at other workers.
    """

    start: int
    stop: int
    before: int
    after: int


class _WorkerTime(threading.local):
    """The computing time of workers in one period in which the main process always awaits at least one result.

    `busy` contains the seconds of each worker, `counted` the seconds that the meter has counted, and `pending` the
    number of awaited results.
    """

    def __init__(self) -> None:
        self.busy: dict[str, float] = {}
        self.counted, self.pending = 0.0, 0


class RemoteColumns(ColumnBlocks):
    """One party's columns at workers, as a training on shares uses them: divided into blocks of rows.

    Args:
        encoding: the fixed-point encoding.
        rate: the step size eta.
        rows: returns the columns (n, d) of a batch, as a matrix whose rows are stored by workers.
        meter: counts the computing time of the workers.
        P: the party's preconditioner (d, d), or None.
    """

    remote = True

    def __init__(
        self,
        encoding: FixedPointEncoding,
        rate: float,
        rows: Callable[[int], ChunkedMatrix],
        meter: Meter,
        P: Floats | None = None,
    ) -> None:
        self._arguments, self._rows, self._meter = (encoding, rate, P), rows, meter
        self._batches: dict[int, tuple[tuple[int, int], list[tuple[int, int, RemoteObject[WorkerRows]]]]] = {}
        self._sums: dict[RowBlock, list[Callable[[], Words]]] = {}
        self._theta = b""
        self._changes: list[Callable[[], Words]] = []
        self._ring, self._time = ShareRing(encoding.bits), _WorkerTime()

    def __len__(self) -> int:
        """Return the number of rows of the first batch."""
        return self.shape(0)[0]

    def shape(self, batch: int) -> tuple[int, int]:
        """Return the shape (n, d) of a batch."""
        return self._located(batch)[0]

    def factor(self, block: RowBlock, *, steps: bool) -> RemoteFactor:
        """Return X or W (n, d) of a block, for products with ciphertexts at the workers."""
        return _BlockFactor(self, block, steps)

    def sums(self, block: RowBlock, theta: Words) -> Words:
        """Return X @ theta (n, c) for the n rows of a block, and request the next blocks, which are needed soon."""
        if self._theta != (key := theta.tobytes()):
            self._theta, self._sums = key, {}
        n, following, size = self.shape(block.batch)[0], block, block.rows
        for _ in range(_MAX_PENDING_BLOCKS):
            if following not in self._sums:
                parts = self.parts_of(following)
                self._sums[following] = [self.start(remote, block_sums, part, theta) for remote, part in parts]
            if following.stop == n:
                break
            following = RowBlock(block.batch, following.stop, min(following.stop + size, n))
        return self._total(self._sums.pop(block))

    def change(self, block: RowBlock, g: Words) -> Words:
        """Start to compute W^T g for the n rows of a block.

        Args:
            block: the block of rows.
            g: this party's shares of their residuals (n, c).

        Returns:
            With the last block of a batch, the sum of W^T g (d, c) over all its blocks; zeros with other blocks.
        """
        if not block.start:
            self._changes = []
        for remote, part in self.parts_of(block):
            g_of_part = np.ascontiguousarray(g[part.before : len(g) - part.after])
            self._changes.append(self.start(remote, block_change, part, g_of_part))
        n, d = self.shape(block.batch)
        if block.stop < n:  # the caller needs only the sum over the batch, so it need not wait for this block
            return np.zeros((d, g.shape[1]), np.uint64)
        pending, self._changes = self._changes, []
        return self._total(pending)

    def parts_of(self, block: RowBlock) -> Iterator[tuple[RemoteObject[WorkerRows], RemoteBlock]]:
        """Yield each worker that stores rows of a block, with the part of the block that it stores."""
        for first, end, remote in self._located(block.batch)[1]:
            start, stop = max(first, block.start), min(end, block.stop)
            if start < stop:
                yield remote, RemoteBlock(start - first, stop - first, start - block.start, block.stop - stop)

    def start(
        self, remote: RemoteObject[S], work: Callable[Concatenate[S, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Callable[[], T]:
        """Start a call at a worker.

        Args:
            remote: an object that the worker stores.
            work: the function to call; its first argument is the object.
            *args: further arguments.
            **kwargs: further keyword arguments.

        Returns:
            A function that waits for the result. It also adds computing time to the meter. Workers compute at the same
            time, so only the time of the slowest one is counted.
        """
        time, pending = self._time, remote.run(work, *args, **kwargs)
        if not time.pending:
            time.busy, time.counted = {}, 0.0
        time.pending += 1

        def result() -> T:
            time.pending -= 1
            value, seconds = pending.result()
            time.busy[remote.worker] = busy = time.busy.get(remote.worker, 0.0) + seconds
            if busy > time.counted:
                self._meter.add_worker_seconds(busy - time.counted)
                time.counted = busy
            return value

        return result

    def _total(self, pending: list[Callable[[], Words]]) -> Words:
        return self._ring.reduce(np.sum([wait() for wait in pending], axis=0, dtype=np.uint64))

    def _located(self, batch: int) -> tuple[tuple[int, int], list[tuple[int, int, RemoteObject[WorkerRows]]]]:
        """Return the shape of a batch, and for each part its first row, the row after its last one, and its worker."""
        if batch not in self._batches:
            matrix = self._rows(batch)
            parts = [part for part in matrix.parts if isinstance(part, RemotePart)]
            located = [
                (part.start, part.stop, part.derive(WorkerRows, *self._arguments, len(matrix))) for part in parts
            ]
            self._batches[batch] = matrix.shape, located
        return self._batches[batch]


@dataclass(frozen=True)
class _BlockFactor(RemoteFactor):
    """The matrix X or W of a block, or its transpose, for products with ciphertexts at the workers."""

    columns: RemoteColumns
    block: RowBlock
    steps: bool
    transposed: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and columns of the matrix."""
        n, d = self.block.rows, self.columns.shape(self.block.batch)[1]
        return (d, n) if self.transposed else (n, d)

    @property
    def T(self) -> RemoteFactor:
        """The transpose of the matrix."""
        return _BlockFactor(self.columns, self.block, self.steps, not self.transposed)

    def multiply(self, scheme: ShareScheme, sealed: bytes) -> Callable[[], list[bytes]]:
        """Start the products with encrypted vectors at the workers, and return a function that waits for them."""
        columns = self.columns
        pending = [
            columns.start(remote, multiply_block, part, scheme, sealed, steps=self.steps, transposed=self.transposed)
            for remote, part in columns.parts_of(self.block)
        ]
        return lambda: [wait() for wait in pending]
