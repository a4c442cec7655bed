"""One party's columns as integers, by block of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

import numpy as np

from securevfl.base.arrays import Floats, RowSlices
from securevfl.base.spill_file import SpillFile
from securevfl.crypto.share_ring import IntegerFactor, Integers, ShareRing, Words, narrowest_integers
from securevfl.protocols.shares.fixed_point import FixedPointEncoding
from securevfl.protocols.shares.product_work import RemoteFactor
from securevfl.protocols.shares.shares_params import RowBlock

_KEPT, _KEPT_BY_SPOOL = 1 << 27, 1 << 24  # bytes of blocks that are kept in memory, without a spool and beside it

_DEAR, _DEAR_KEPT = 512, 1 << 29  # columns from which more is kept without a spool, and how much

_STRETCH = 4096  # rows that are made into integers at a time


class ColumnBlocks(ABC):
    """One party's columns by block of rows, wherever they lie: all that the protocol takes of them."""

    apart = False  # whether they lie in other processes

    @abstractmethod
    def integers(self, piece: RowBlock) -> tuple[Integers, Integers] | tuple[RemoteFactor, RemoteFactor]:
        """X and W (n x d) of a block, for products with ciphertexts."""

    @abstractmethod
    def sums(self, piece: RowBlock, theta: Words) -> Words:
        """X theta (n x c) of a block."""

    @abstractmethod
    def change(self, piece: RowBlock, g: Words) -> Words:
        """W^T g (d x c) of a block; it may come with that of a later one of the batch, of the last at the latest."""


def encode_columns(
    numbers: FixedPointEncoding, rows: RowSlices, block: slice, rate: float, P: Floats | None, n: int
) -> tuple[Integers, Integers]:
    """X and W (m x d) of some rows of a batch of n, of as few bytes as hold them, made a few rows at a time."""
    made = list[tuple[Integers, Integers]]()
    for start in range(block.start, block.stop, _STRETCH):
        X = rows[start : min(start + _STRETCH, block.stop)]
        made.append(
            (
                narrowest_integers(numbers.encode_columns(X)),
                narrowest_integers(numbers.encode_steps(X, rate, P, rows=n)),
            )
        )
    X, W = (np.concatenate(each) for each in zip(*made, strict=True))
    return X, W


class LocalColumns(ColumnBlocks):
    """One party's columns in this process: as integers for products ahead, as factors for those of a visit.

    `integers` of a block are X and W (n x d), a stretch of rows at a time, and of as few bytes as hold them: 2 an entry
    of X and mostly 4 of W. Those of the first blocks are kept in memory, others are read from a file that has no
    name where there is a folder for one, and else made whenever they are asked for.
    """

    def __init__(
        self,
        numbers: FixedPointEncoding,
        rate: float,
        X: Callable[[int], RowSlices],
        P: Floats | None = None,
        folder: Path | None = None,
    ) -> None:
        """X: the columns (n x d) of a batch. P: a matrix (d x d) of the party's own that its steps are turned by.
        folder: where what is not kept in memory is spooled."""
        self._numbers, self._rate, self._X, self._P = numbers, rate, X, P
        self._spool = None if folder is None else SpillFile[RowBlock](folder)
        self._ring = ShareRing(numbers.bits)
        self._kept: dict[RowBlock, tuple[Integers, Integers]] = {}
        self._factored: dict[RowBlock, tuple[IntegerFactor, IntegerFactor]] = {}
        dear = _DEAR_KEPT if P is not None and len(P) >= _DEAR else _KEPT  # d products an entry of W
        self._room = dear if folder is None else _KEPT_BY_SPOOL

    def integers(self, piece: RowBlock) -> tuple[Integers, Integers]:
        """X and W of a block."""
        if piece in self._kept:
            return self._kept[piece]
        if self._spool is not None and (read := self._spool.get(piece)) is not None:
            X, W = read
            return X, W
        made = self._integers(piece)
        if (size := made[0].nbytes + made[1].nbytes) <= self._room:
            self._room -= size
            self._kept[piece] = made
        elif self._spool is not None:
            self._spool.put(piece, made)
        return made

    def factors(self, piece: RowBlock) -> tuple[IntegerFactor, IntegerFactor]:
        """X and W of a block, ready for products."""
        if piece in self._factored:
            return self._factored[piece]
        X, W = self.integers(piece)
        made = IntegerFactor(self._ring, X), IntegerFactor(self._ring, W)
        if 16 * X.size <= self._room:  # floats of both
            self._room -= 16 * X.size
            self._factored[piece] = made
        return made

    def sums(self, piece: RowBlock, theta: Words) -> Words:
        return self.factors(piece)[0].times(theta)

    def change(self, piece: RowBlock, g: Words) -> Words:
        return self.factors(piece)[1].transpose_times(g)

    def _integers(self, piece: RowBlock) -> tuple[Integers, Integers]:
        rows = self._X(piece.batch)
        return encode_columns(self._numbers, rows, slice(piece.start, piece.stop), self._rate, self._P, len(rows))
