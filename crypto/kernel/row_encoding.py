"""How rows of J become integers."""

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

SPARSE_ROWS_AT_ONCE = 512  # rows with known zeros that are measured at a time


@dataclass(frozen=True)
class ColumnNorms:
    """Sizes of each column (d,): its largest |x|, and the sums of squares and of |x| relative to that."""

    largest: Floats
    squares: Floats
    absolute: Floats


def column_norms(stretch: RowChunk) -> ColumnNorms:
    """Compute the norms of a stretch's columns. RangeError if one is not finite."""
    if isinstance(stretch.rows, SparseRows):
        return _sparse_norms(stretch.rows)
    return merge_norms(_norms(X) for _, X in stretch.blocks())


def _sparse_norms(rows: SparseRows) -> ColumnNorms:
    """Compute the norms of rows that are read without their zeros, `SPARSE_ROWS_AT_ONCE` rows at a time.

    In more rows at a time, more columns would have entries.
    """
    n, d = rows.shape
    found = []
    for start in range(0, n, SPARSE_ROWS_AT_ONCE):
        columns, part = rows.part(start, min(n, start + SPARSE_ROWS_AT_ONCE))
        one, whole = _norms(part), np.zeros((3, d))
        whole[:, columns] = one.largest, one.squares, one.absolute
        found.append(ColumnNorms(*whole))
    return merge_norms(found)


def _norms(X: Floats) -> ColumnNorms:
    largest = np.abs(X).max(axis=0)
    if not np.isfinite(largest).all():
        raise RangeError("lattice: J has values that are not finite; drop or impute them first")
    unit = np.abs(X) / np.where(largest > 0, largest, 1.0)
    return ColumnNorms(largest, (unit**2).sum(axis=0), unit.sum(axis=0))


def merge_norms(found: Iterable[ColumnNorms]) -> ColumnNorms:
    """Norms of all rows together."""
    each = list(found)
    largest = np.max([one.largest for one in each], axis=0)
    unit = np.where(largest > 0, largest, 1.0)
    shares = [one.largest / unit for one in each]
    squares = sum(share**2 * one.squares for share, one in zip(shares, each, strict=True))
    absolute = sum(share * one.absolute for share, one in zip(shares, each, strict=True))
    return ColumnNorms(largest, np.asarray(squares), np.asarray(absolute))


@dataclass(frozen=True)
class RowEncoding:
    """How J becomes integers in coefficients: the layout, each column's largest |x|, and the integers to that (d,).

    rho: the secret share of each column in each check (d x checks).
    """

    layout: RingLayout
    largest: Floats
    scale: Floats
    rho: Floats = field(repr=False)

    @classmethod
    def of(cls, layout: RingLayout, parameters: RowParameters, found: ColumnNorms, rho: Floats) -> RowEncoding:
        """Columns scaled to integers of norm T / sqrt(f) and sum L at most; a column of 0/1 without any rounding."""
        zero = found.largest == 0
        T, d = parameters.profile.T, sum(rho.shape)
        euclid, absolute = np.sqrt(found.squares) + zero, found.absolute + zero
        scale = np.minimum(T / math.sqrt(min(layout.columns, d)) / euclid, column_cap(parameters, layout) / absolute)
        return cls(layout, found.largest, np.where(scale > 1, np.floor(scale), scale), rho)

    @property
    def width(self) -> int:
        """Columns that are encoded: those of J, and the checks."""
        return sum(self.rho.shape)

    @property
    def worth(self) -> Floats:
        """(d,): worth of one integer in each column."""
        return self.largest / self.scale

    def same(self, other: RowEncoding) -> bool:
        """Whether plaintexts of the one are those of the other, for the same J."""
        sizes = (self.layout.r, self.layout.s) == (other.layout.r, other.layout.s)
        return sizes and np.array_equal(self.rho, other.rho)


def column_cap(parameters: RowParameters, layout: RingLayout) -> float:
    """Compute L, the greatest sum of |x| over an encoded column."""
    return parameters.profile.T * math.sqrt(layout.n / layout.columns)


def g_scale(parameters: RowParameters, layout: RingLayout, bound: float) -> float:
    """Compute how many integers a unit of g is. RangeError if the bound on |g| is too small for that."""
    scale: float = 0.49 * parameters.modulus / column_cap(parameters, layout) / bound
    if not math.isfinite(scale):
        raise RangeError("lattice: the bound on g is too small for a fixed-point scale; scale g up")
    return scale


def block_rows(layout: RingLayout, start: int, rows: int, block: int) -> tuple[int, int]:
    """Return the rows of the matrix, from and to, that a sample block spans in a stretch that begins at `start`."""
    return max(start, block * layout.s), min(start + rows, (block + 1) * layout.s)


def encoded_rows(stretch: RowChunk, encoding: RowEncoding, start: int, blocks: Sequence[int]) -> Floats:
    """Rows of these sample blocks as integers, checks beside (len(blocks) * s, width), with zeros for rows of other
    stretches.

    start: the stretch's first row.
    """
    layout, d = encoding.layout, encoding.width
    unit = np.where(encoding.largest > 0, encoding.largest, 1.0)
    rows = np.zeros((len(blocks), layout.s, d))
    for place, block in enumerate(blocks):
        begin, end = block_rows(layout, start, len(stretch), block)
        own = np.rint(stretch.rows[slice(begin - start, end - start)] / unit * encoding.scale)
        rows[place, begin - block * layout.s : end - block * layout.s] = append_checks(own, encoding.rho)
    return rows.reshape(-1, d)
