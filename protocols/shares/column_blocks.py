"""One party's feature columns as fixed-point integers, divided into blocks of rows, as a training on shares uses them.

A batch of n rows has columns X (n, d) and steps W = eta / n * X @ P (n, d), with the step size eta and an optional
preconditioner P (d, d). Weights theta (d, c) and residuals g (n, c) are words: integers modulo 2^L, stored as uint64,
for c model outputs per row. An iteration needs the products X @ theta and W^T g.
"""

from __future__ import annotations

import math
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

_CACHE_BYTES = 1 << 27  # bytes of the cache of encoded blocks if there is no temporary file for blocks that do not fit
_CACHE_BYTES_WITH_SPILL = 1 << 24  # bytes of the same cache if a temporary file stores the blocks that do not fit
_WIDE_COLUMNS = 512  # from this number of columns on, computing X @ P takes long, so more blocks of W are cached
_CACHE_BYTES_WIDE = 1 << 29  # bytes of the cache for `_WIDE_COLUMNS` or more columns
_ROWS_PER_ENCODING = 4096  # number of rows that are encoded at a time, to limit memory

_FactorKey = tuple[RowBlock, bool]  # a block, and whether the matrix is its W and not its X


class ColumnBlocks(ABC):
    """Interface to one party's feature columns, by row block, independent of where they are stored.

    Attributes:
        remote: whether other processes than the party's main process store the columns.
    """

    remote = False

    @abstractmethod
    def factor(self, block: RowBlock, *, steps: bool) -> Integers | RemoteFactor:
        """Return a matrix (n, d) to multiply it with ciphertexts.

        Args:
            block: the block of n rows.
            steps: True for the block's steps W, False for its columns X.

        Returns:
            The matrix as integers, or an object for a matrix that other processes store.
        """

    @abstractmethod
    def sums(self, block: RowBlock, theta: Words) -> Words:
        """Return the product X @ theta (n, c) for the n rows of a block."""

    @abstractmethod
    def change(self, block: RowBlock, g: Words) -> Words:
        """Return the product W^T g (d, c) for the n rows of a block.

        An implementation may return zeros here and add the product to that of a later block of the same batch, because
        only the sum over the batch matters.
        """


def encode_columns(
    encoding: FixedPointEncoding, rows: RowSlices, block: slice, rate: float, P: Floats | None, n: int
) -> tuple[Integers, Integers]:
    """Compute X and W for m rows of a batch, in the narrowest integer type that holds the values.

    Args:
        encoding: the fixed-point encoding.
        rows: the columns of the batch.
        block: the slice of the batch that contains the m rows.
        rate: the step size eta.
        P: the party's preconditioner (d, d), or None.
        n: the number of rows of the batch.

    Returns:
        X and W (m, d).
    """
    chunks = list[tuple[Integers, Integers]]()
    for start in range(block.start, block.stop, _ROWS_PER_ENCODING):
        X = rows[start : min(start + _ROWS_PER_ENCODING, block.stop)]
        steps = encoding.encode_steps(X, rate, P, rows=n)
        chunks.append((narrowest_integers(encoding.encode_columns(X)), narrowest_integers(steps)))
    X, W = (np.concatenate(factor) for factor in zip(*chunks, strict=True))
    return X, W


class LocalColumns(ColumnBlocks):
    """One party's columns in this process.

    The first blocks are cached in memory. Later blocks are stored in an unnamed temporary file if there is a folder for
    it, and recomputed on every access otherwise. An entry of X takes 2 bytes, and an entry of W usually 4.

    Args:
        encoding: the fixed-point encoding.
        rate: the step size eta.
        X: returns a batch's columns (n, d), given the number of the batch.
        P: the party's preconditioner (d, d), or None.
        folder: folder for the temporary file, or None.
    """

    def __init__(
        self,
        encoding: FixedPointEncoding,
        rate: float,
        X: Callable[[int], RowSlices],
        P: Floats | None = None,
        folder: Path | None = None,
    ) -> None:
        self._encoding, self._rate, self._X, self._P = encoding, rate, X, P
        self._spill_file = None if folder is None else SpillFile[_FactorKey](folder)
        self._ring = ShareRing(encoding.bits)
        self._integer_cache: dict[_FactorKey, Integers] = {}
        self._float_cache: dict[_FactorKey, IntegerFactor] = {}
        # with a preconditioner P, each entry of W takes d multiplications, so more blocks are cached if d is large
        wide = P is not None and len(P) >= _WIDE_COLUMNS
        in_memory = _CACHE_BYTES_WIDE if wide else _CACHE_BYTES
        self._free_bytes = in_memory if folder is None else _CACHE_BYTES_WITH_SPILL

    def factor(self, block: RowBlock, *, steps: bool) -> Integers:
        """Return X or W (n, d) of a block, from memory or the temporary file if they were computed before."""
        if (cached := self._integer_cache.get((block, steps))) is not None:
            return cached
        if self._spill_file is not None and (stored := self._spill_file.get((block, steps))) is not None:
            return stored[0]
        factors = self._integers(block)
        keys: list[_FactorKey] = [(block, False), (block, True)]
        if (size := factors[0].nbytes + factors[1].nbytes) <= self._free_bytes:
            self._free_bytes -= size
            self._integer_cache.update(zip(keys, factors, strict=True))
        elif self._spill_file is not None:
            for key, integers in zip(keys, factors, strict=True):
                self._spill_file.put(key, [integers])
        return factors[steps]

    def sums(self, block: RowBlock, theta: Words) -> Words:
        """Return the product X @ theta (n, c) for the n rows of a block."""
        return self._float_factor(block, steps=False).times(theta)

    def change(self, block: RowBlock, g: Words) -> Words:
        """Return the product W^T g (d, c) for the n rows of a block."""
        return self._float_factor(block, steps=True).transpose_times(g)

    def _float_factor(self, block: RowBlock, *, steps: bool) -> IntegerFactor:
        """Return X or W (n, d) of a block as floats, for exact products with integers modulo 2^L."""
        if (cached := self._float_cache.get((block, steps))) is not None:
            return cached
        factor = IntegerFactor(self._ring, self.factor(block, steps=steps))
        size = 8 * math.prod(factor.shape)  # an entry is a float of 8 bytes
        if size <= self._free_bytes:
            self._free_bytes -= size
            self._float_cache[block, steps] = factor
        return factor

    def _integers(self, block: RowBlock) -> tuple[Integers, Integers]:
        rows = self._X(block.batch)
        return encode_columns(self._encoding, rows, slice(block.start, block.stop), self._rate, self._P, len(rows))
