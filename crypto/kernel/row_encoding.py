"""How rows of J become integers.

Columns are measured one by one and scaled to fixed point. Norms of several chunks of rows are merged, so every process
measures the rows that it holds. Columns become integers x with ||x||_2 <= T / sqrt(f) and ||x||_1 <= L, where f is the
number of columns in a block, so that no sum exceeds the modulus. The scales stay with the owner of J.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import RowChunk, SparseRows
from securevfl.crypto.kernel.opening_checks import append_checks
from securevfl.crypto.kernel.ring_layout import RingLayout
from securevfl.crypto.kernel.row_parameters import RowParameters
from securevfl.errors import RangeError

SPARSE_ROWS_AT_ONCE = 512
"""Sparse rows that are measured at a time; in more rows, more columns would have entries."""


@dataclass(frozen=True)
class ColumnNorms:
    """Norms of each column (d,).

    Attributes:
        largest: the largest |x|.
        squares: the sum of squares, relative to the largest value.
        absolute: the sum of absolute values, relative to the largest value.
    """

    largest: Floats
    squares: Floats
    absolute: Floats


def column_norms(chunk: RowChunk) -> ColumnNorms:
    """Compute the norms of a chunk's columns; RangeError if a value is not finite."""
    if isinstance(chunk.rows, SparseRows):
        return _sparse_norms(chunk.rows)
    return merge_norms(_norms(X) for _, X in chunk.blocks())


def _sparse_norms(rows: SparseRows) -> ColumnNorms:
    n, d = rows.shape
    norms = []
    for start in range(0, n, SPARSE_ROWS_AT_ONCE):
        columns, entries = rows.part(start, min(n, start + SPARSE_ROWS_AT_ONCE))
        present, every = _norms(entries), np.zeros((3, d))
        every[:, columns] = present.largest, present.squares, present.absolute
        norms.append(ColumnNorms(*every))
    return merge_norms(norms)


def _norms(X: Floats) -> ColumnNorms:
    largest = np.abs(X).max(axis=0)
    if not np.isfinite(largest).all():
        raise RangeError(
            "J has values that are not finite", "drop these rows or impute the values", code="SVFL-CRYPTO-RANGE"
        )
    unit = np.abs(X) / np.where(largest > 0, largest, 1.0)
    return ColumnNorms(largest, (unit**2).sum(axis=0), unit.sum(axis=0))


def merge_norms(norms: Iterable[ColumnNorms]) -> ColumnNorms:
    """Return the norms of all rows together."""
    chunks = list(norms)
    largest = np.max([chunk.largest for chunk in chunks], axis=0)
    unit = np.where(largest > 0, largest, 1.0)
    ratios = [chunk.largest / unit for chunk in chunks]
    squares = sum(ratio**2 * chunk.squares for ratio, chunk in zip(ratios, chunks, strict=True))
    absolute = sum(ratio * chunk.absolute for ratio, chunk in zip(ratios, chunks, strict=True))
    return ColumnNorms(largest, np.asarray(squares), np.asarray(absolute))


@dataclass(frozen=True)
class RowEncoding:
    """How J becomes integers in coefficients.

    Attributes:
        layout: the layout.
        largest: the largest |x| of each column (d,).
        scale: the integer that it becomes (d,).
        rho: the secret weight of each column in each check (d, checks).
    """

    layout: RingLayout
    largest: Floats
    scale: Floats
    rho: Floats = field(repr=False)

    @classmethod
    def of(cls, layout: RingLayout, parameters: RowParameters, norms: ColumnNorms, rho: Floats) -> RowEncoding:
        """Choose scales with integers of norm T / sqrt(f) and sum L at most; 0/1 columns are encoded exactly.

        Args:
            layout: the layout.
            parameters: the parameters of the engine.
            norms: the norms of the columns.
            rho: the weights of the checks (d, checks).

        Returns:
            The encoding.
        """
        zero = norms.largest == 0
        T, d = parameters.profile.T, sum(rho.shape)
        euclid, absolute = np.sqrt(norms.squares) + zero, norms.absolute + zero
        scale = np.minimum(T / math.sqrt(min(layout.columns, d)) / euclid, column_cap(parameters, layout) / absolute)
        return cls(layout, norms.largest, np.where(scale > 1, np.floor(scale), scale), rho)

    @property
    def width(self) -> int:
        """Number of encoded columns: those of J and the checks."""
        return sum(self.rho.shape)

    @property
    def worth(self) -> Floats:
        """The value of one integer step in each column (d,)."""
        return self.largest / self.scale

    def same(self, other: RowEncoding) -> bool:
        """Return whether both encodings give the same plaintexts for the same J."""
        sizes = (self.layout.r, self.layout.s) == (other.layout.r, other.layout.s)
        return sizes and np.array_equal(self.rho, other.rho)


def column_cap(parameters: RowParameters, layout: RingLayout) -> float:
    """Return L, the largest sum of |x| over an encoded column."""
    return parameters.profile.T * math.sqrt(layout.n / layout.columns)


def g_scale(parameters: RowParameters, layout: RingLayout, bound: float) -> float:
    """Return the integers of one unit of g.

    Args:
        parameters: the parameters of the engine.
        layout: the layout.
        bound: largest |g|.

    Returns:
        The scale.

    Raises:
        RangeError: if the bound is too small for a finite scale.
    """
    scale: float = 0.49 * parameters.modulus / column_cap(parameters, layout) / bound
    if not math.isfinite(scale):
        raise RangeError(
            "the bound on g is too small for a fixed-point scale", "use a larger scale of g", code="SVFL-CRYPTO-RANGE"
        )
    return scale


def block_rows(layout: RingLayout, start: int, rows: int, block: int) -> tuple[int, int]:
    """Return the first and last row (exclusive) of a sample block within a chunk of `rows` rows from row `start` on."""
    return max(start, block * layout.s), min(start + rows, (block + 1) * layout.s)


def encoded_rows(chunk: RowChunk, encoding: RowEncoding, start: int, blocks: Sequence[int]) -> Floats:
    """Return the rows of sample blocks as integers with checks, and zeros for rows of other chunks.

    Args:
        chunk: the chunk.
        encoding: the encoding.
        start: number of the chunk's first row.
        blocks: numbers of the sample blocks.

    Returns:
        Integers (len(blocks) * s, width).
    """
    layout, width = encoding.layout, encoding.width
    unit = np.where(encoding.largest > 0, encoding.largest, 1.0)
    rows = np.zeros((len(blocks), layout.s, width))
    for index, block in enumerate(blocks):
        begin, end = block_rows(layout, start, len(chunk), block)
        integers = np.rint(chunk.rows[slice(begin - start, end - start)] / unit * encoding.scale)
        rows[index, begin - block * layout.s : end - block * layout.s] = append_checks(integers, encoding.rho)
    return rows.reshape(-1, width)
