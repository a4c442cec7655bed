"""One party's columns at the workers of an engine of its own: what a training on shares takes of rows is made there.

Masks lie on weights and residuals, and never on X. So all that meets the rows X, and the steps W made of them, is a
product with something that the party's own process has, and a worker needs the rows alone for it:

    [[V]] (ciphertexts of another party)   -> X [[V]], W^T [[V]], which the own process adds up, and hides for sending
    theta (the party's share of weights)   -> X theta mod 2^L
    g (what the party knows of residuals)  -> W^T g mod 2^L

A worker has no key and draws nothing: equal calls give equal bytes, so an engine may make them as often as it likes,
after a worker is lost as well, and no mask serves twice. Masks, keys, transfers and their tables, records and lines to
the others stay with the party's own process. To anybody without both holders' shares theta and g are uniform.

Rows of a block that lie at several workers are products of matrices whose sum is the block's.
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

_AHEAD = 16  # blocks whose sums are asked for before the first is waited for

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


class WorkerRows:
    """A stretch of a batch of n rows at a worker, as integers. It travels without them."""

    def __init__(self, stretch: RowChunk, numbers: FixedPointEncoding, rate: float, P: Floats | None, n: int) -> None:
        self.ring = ShareRing(numbers.bits)
        self._made_by = stretch, numbers, rate, P, n
        self._kept: dict[tuple[int, int], tuple[Integers, Integers]] = {}

    def __reduce__(self) -> tuple[type[WorkerRows], tuple[Any, ...]]:
        return WorkerRows, self._made_by

    def __sizeof__(self) -> int:
        stretch = self._made_by[0]
        return 6 * len(stretch) * int(stretch.rows.shape[1])  # of X two bytes, of W mostly four

    def integers(self, start: int, stop: int) -> tuple[Integers, Integers]:
        """X and W of rows of the stretch."""
        if (start, stop) not in self._kept:
            stretch, numbers, rate, P, n = self._made_by
            self._kept[start, stop] = encode_columns(numbers, stretch.rows, slice(start, stop), rate, P, n)
        return self._kept[start, stop]


def block_sums(rows: WorkerRows, at: RemoteBlock, theta: Words) -> Words:
    """X theta (n x c) of a block, 0 in rows that lie elsewhere."""
    own = IntegerFactor(rows.ring, rows.integers(at.start, at.stop)[0]).times(theta)
    return np.pad(own, ((at.before, at.after), (0, 0)))


def block_change(rows: WorkerRows, at: RemoteBlock, g: Words) -> Words:
    """W^T g (d x c), of the rows of g (m x c) that lie here."""
    return IntegerFactor(rows.ring, rows.integers(at.start, at.stop)[1]).transpose_times(g)


def multiply_block(
    rows: WorkerRows, at: RemoteBlock, scheme: ShareScheme, sealed: bytes, *, steps: bool, turned: bool
) -> bytes:
    """`ShareScheme.multiply` of a block's W, or of its X, with zeros for rows that lie elsewhere."""
    W = np.pad(rows.integers(at.start, at.stop)[steps], ((at.before, at.after), (0, 0)))
    return scheme.multiply(W.T if turned else W, sealed)


@dataclass(frozen=True)
class RemoteBlock:
    """The place in a stretch where rows of a block lie, and how many of the block come before and after them."""

    start: int
    stop: int
    before: int
    after: int


class _Pace(threading.local):
    """Seconds that each worker has been busy since nothing was waited for, and how many of them are booked."""

    def __init__(self) -> None:
        self.busy: dict[str, float] = {}
        self.booked, self.waiting = 0.0, 0


class RemoteColumns(ColumnBlocks):
    """One party's columns at workers, by block."""

    apart = True

    def __init__(
        self,
        numbers: FixedPointEncoding,
        rate: float,
        rows: Callable[[int], ChunkedMatrix],
        meter: Meter,
        P: Floats | None = None,
    ) -> None:
        """rows: the columns (n x d) of a batch where they lie. P: as for `VisitColumns`."""
        self._made_of, self._rows, self._meter = (numbers, rate, P), rows, meter
        self._batches: dict[int, tuple[tuple[int, int], list[tuple[int, int, RemoteObject[WorkerRows]]]]] = {}
        self._sums: dict[RowBlock, list[Callable[[], Words]]] = {}
        self._theta = b""
        self._changes: list[Callable[[], Words]] = []
        self._ring, self._pace = ShareRing(numbers.bits), _Pace()

    def __len__(self) -> int:
        return self.shape(0)[0]

    def shape(self, batch: int) -> tuple[int, int]:
        """n and d of a batch."""
        return self._placed(batch)[0]

    def integers(self, piece: RowBlock) -> tuple[RemoteFactor, RemoteFactor]:
        return _PlacedFactor(self, piece, steps=False), _PlacedFactor(self, piece, steps=True)

    def sums(self, piece: RowBlock, theta: Words) -> Words:
        if self._theta != (told := theta.tobytes()):
            self._theta, self._sums = told, {}
        n, after, size = self.shape(piece.batch)[0], piece, piece.rows
        for _ in range(_AHEAD):
            if after not in self._sums:
                self._sums[after] = [self.start(placed, block_sums, at, theta) for placed, at in self.lying(after)]
            if after.stop == n:
                break
            after = RowBlock(piece.batch, after.stop, min(after.stop + size, n))
        return self._total(self._sums.pop(piece))

    def change(self, piece: RowBlock, g: Words) -> Words:
        if not piece.start:
            self._changes = []
        for placed, at in self.lying(piece):
            own = np.ascontiguousarray(g[at.before : len(g) - at.after])
            self._changes.append(self.start(placed, block_change, at, own))
        n, d = self.shape(piece.batch)
        if piece.stop < n:  # nobody asks before the last block
            return np.zeros((d, g.shape[1]), np.uint64)
        coming, self._changes = self._changes, []
        return self._total(coming)

    def lying(self, piece: RowBlock) -> Iterator[tuple[RemoteObject[WorkerRows], RemoteBlock]]:
        """Yield each worker that has rows of a block, with their place."""
        for first, end, placed in self._placed(piece.batch)[1]:
            start, stop = max(first, piece.start), min(end, piece.stop)
            if start < stop:
                yield placed, RemoteBlock(start - first, stop - first, start - piece.start, piece.stop - stop)

    def start(
        self, placed: RemoteObject[S], work: Callable[Concatenate[S, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Callable[[], T]:
        """Start work at a worker; what waits for its result, and books the time by the clock of the slowest."""
        pace, coming = self._pace, placed.run(work, *args, **kwargs)
        if not pace.waiting:
            pace.busy, pace.booked = {}, 0.0
        pace.waiting += 1

        def result() -> T:
            pace.waiting -= 1
            value, seconds = coming.result()
            pace.busy[placed.worker] = busy = pace.busy.get(placed.worker, 0.0) + seconds
            if busy > pace.booked:
                self._meter.add_worker_seconds(busy - pace.booked)
                pace.booked = busy
            return value

        return result

    def _total(self, coming: list[Callable[[], Words]]) -> Words:
        return self._ring.reduce(np.sum([wait() for wait in coming], axis=0, dtype=np.uint64))

    def _placed(self, batch: int) -> tuple[tuple[int, int], list[tuple[int, int, RemoteObject[WorkerRows]]]]:
        if batch not in self._batches:
            tall = self._rows(batch)
            parts = [part for part in tall.parts if isinstance(part, RemotePart)]
            placed = [(part.start, part.stop, part.derive(WorkerRows, *self._made_of, len(tall))) for part in parts]
            self._batches[batch] = tall.shape, placed
        return self._batches[batch]


@dataclass(frozen=True)
class _PlacedFactor(RemoteFactor):
    """X or W of a block, or its transpose."""

    columns: RemoteColumns
    piece: RowBlock
    steps: bool
    turned: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        n, d = self.piece.rows, self.columns.shape(self.piece.batch)[1]
        return (d, n) if self.turned else (n, d)

    @property
    def T(self) -> RemoteFactor:
        return _PlacedFactor(self.columns, self.piece, self.steps, not self.turned)

    def multiply(self, scheme: ShareScheme, sealed: bytes) -> Callable[[], list[bytes]]:
        columns = self.columns
        coming = [
            columns.start(placed, multiply_block, at, scheme, sealed, steps=self.steps, turned=self.turned)
            for placed, at in columns.lying(self.piece)
        ]
        return lambda: [wait() for wait in coming]
