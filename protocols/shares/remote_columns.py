"""One party's columns at the workers of a distributed engine, where a training on shares multiplies them.

Masks cover weights and residuals, and never X. Every operation on the rows X, and on the steps W computed from them, is
a product with a value of the party's main process, and a worker needs only the rows for it:

    [[V]] (ciphertexts of another party)   -> X [[V]], W^T [[V]]; the main process adds them up and masks the sum
    theta (the party's share of weights)   -> X theta mod 2^L
    g (the party's share of residuals)     -> W^T g mod 2^L

A worker has no key and draws no random numbers. Equal calls return equal bytes, so an engine may repeat them, for
example after a worker is lost, and no mask is used twice. Masks, keys, oblivious transfers and their tables, stored
records and connections stay in the main process. theta and g are uniform to anybody without both holders' shares.

If several workers store rows of one block, their results are products of matrices whose sum is the block.
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

_MAX_PENDING_BLOCKS = 16  # blocks whose sums are requested before the first one is awaited

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


class WorkerRows:
    """The rows of a batch that one worker stores, as integers. It is sent to the worker without the integers.

    Args:
        chunk: the rows.
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
        """Pickle the arguments only."""
        return WorkerRows, self._arguments

    def __sizeof__(self) -> int:
        """Return the bytes of the integers: two for an entry of X, mostly four for one of W."""
        chunk = self._arguments[0]
        return 6 * len(chunk) * int(chunk.rows.shape[1])

    def integers(self, start: int, stop: int) -> tuple[Integers, Integers]:
        """Return X and W of the rows `start` to `stop` of the worker."""
        if (start, stop) not in self._cache:
            chunk, encoding, rate, P, n = self._arguments
            self._cache[start, stop] = encode_columns(encoding, chunk.rows, slice(start, stop), rate, P, n)
        return self._cache[start, stop]


def block_sums(rows: WorkerRows, part: RemoteBlock, theta: Words) -> Words:
    """Return X theta (n, c) of a block, with zeros for rows that other workers store."""
    sums = IntegerFactor(rows.ring, rows.integers(part.start, part.stop)[0]).times(theta)
    return np.pad(sums, ((part.before, part.after), (0, 0)))


def block_change(rows: WorkerRows, part: RemoteBlock, g: Words) -> Words:
    """Return W^T g (d, c) for the rows of g (m, c) that the worker stores."""
    return IntegerFactor(rows.ring, rows.integers(part.start, part.stop)[1]).transpose_times(g)


def multiply_block(
    rows: WorkerRows, part: RemoteBlock, scheme: ShareScheme, sealed: bytes, *, steps: bool, transposed: bool
) -> bytes:
    """Return `ShareScheme.multiply` of a block, with zeros for rows that other workers store.

    Args:
        rows: the rows of the worker.
        part: the part of the block that the worker stores.
        scheme: the encryption scheme.
        sealed: the encrypted vectors.
        steps: True to multiply W, False to multiply X.
        transposed: True to multiply the transpose.

    Returns:
        The encrypted product.
    """
    factor = np.pad(rows.integers(part.start, part.stop)[steps], ((part.before, part.after), (0, 0)))
    return scheme.multiply(factor.T if transposed else factor, sealed)


@dataclass(frozen=True)
class RemoteBlock:
    """The part of a block that one worker stores.

    Attributes:
        start: the first row among the worker's rows.
        stop: the end of the rows among the worker's rows.
        before: the number of rows of the block before them.
        after: the number of rows of the block after them.
    """

    start: int
    stop: int
    before: int
    after: int


class _WorkerTime(threading.local):
    """Busy seconds of each worker since no result was awaited, and how many of them the meter has counted."""

    def __init__(self) -> None:
        self.busy: dict[str, float] = {}
        self.counted, self.pending = 0.0, 0


class RemoteColumns(ColumnBlocks):
    """One party's columns at workers, by block.

    Args:
        encoding: the fixed-point encoding.
        rate: the step size eta.
        rows: returns the columns (n, d) of a batch where they are stored.
        meter: counts the time of the workers.
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
        """Return n and d of a batch."""
        return self._located(batch)[0]

    def integers(self, block: RowBlock) -> tuple[RemoteFactor, RemoteFactor]:
        """Return X and W (n, d) of a block, for products with ciphertexts at the workers."""
        return _BlockFactor(self, block, steps=False), _BlockFactor(self, block, steps=True)

    def sums(self, block: RowBlock, theta: Words) -> Words:
        """Return X theta (n, c) of a block; the sums of the next blocks are requested as well."""
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
        """Start the change of a block, and return that of the whole batch with its last block; zeros before."""
        if not block.start:
            self._changes = []
        for remote, part in self.parts_of(block):
            g_of_part = np.ascontiguousarray(g[part.before : len(g) - part.after])
            self._changes.append(self.start(remote, block_change, part, g_of_part))
        n, d = self.shape(block.batch)
        if block.stop < n:  # the change is needed with the last block
            return np.zeros((d, g.shape[1]), np.uint64)
        pending, self._changes = self._changes, []
        return self._total(pending)

    def parts_of(self, block: RowBlock) -> Iterator[tuple[RemoteObject[WorkerRows], RemoteBlock]]:
        """Yield each worker that stores rows of a block, with the part that it stores."""
        for first, end, remote in self._located(block.batch)[1]:
            start, stop = max(first, block.start), min(end, block.stop)
            if start < stop:
                yield remote, RemoteBlock(start - first, stop - first, start - block.start, block.stop - stop)

    def start(
        self, remote: RemoteObject[S], work: Callable[Concatenate[S, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Callable[[], T]:
        """Start a call at a worker.

        Args:
            remote: the object at the worker.
            work: the function to call with it.
            *args: further arguments.
            **kwargs: further keyword arguments.

        Returns:
            A function that waits for the result. It also counts the time, by the clock of the slowest worker.
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
        """Return the shape of a batch, and first row, end and worker of each of its parts."""
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
    """X or W of a block, or its transpose."""

    columns: RemoteColumns
    block: RowBlock
    steps: bool
    transposed: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and columns."""
        n, d = self.block.rows, self.columns.shape(self.block.batch)[1]
        return (d, n) if self.transposed else (n, d)

    @property
    def T(self) -> RemoteFactor:
        """The transpose."""
        return _BlockFactor(self.columns, self.block, self.steps, not self.transposed)

    def multiply(self, scheme: ShareScheme, sealed: bytes) -> Callable[[], list[bytes]]:
        """Start the products at the workers, and return a function that waits for them."""
        columns = self.columns
        pending = [
            columns.start(remote, multiply_block, part, scheme, sealed, steps=self.steps, transposed=self.transposed)
            for remote, part in columns.parts_of(self.block)
        ]
        return lambda: [wait() for wait in pending]
