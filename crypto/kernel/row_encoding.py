"""Encoding of the rows of a matrix J (n, d) as integers, before they are multiplied with an encrypted g.

Each column x of J is multiplied by a scale and rounded, so that its Euclidean norm is at most T / sqrt(f) and the sum
of its absolute values at most L. T and L are public bounds, and f is the number of columns in a block, so that no sum
in a product exceeds the modulus q. To choose the scales, every process computes the norms of the rows that it stores (a
chunk), and the norms are merged. The scales stay with the party that has J. Check columns (opening_checks.py) are
appended. Rows are divided into blocks of s rows ("sample blocks") by a layout (ring_layout.py).
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
"""Number of sparse rows that are processed at a time; in more rows, more columns would have entries."""


@dataclass(frozen=True)
class ColumnNorms:
    """Largest values, sums of squares and sums of absolute values of each of d columns.

    Attributes:
        largest: the largest absolute value of each column (d,).
        squares: for each column, divided by its largest absolute value, the sum of the squares of its entries (d,).
        absolute: for the same divided columns, the sum of the absolute values of the entries (d,).
    """

    largest: Floats
    squares: Floats
    absolute: Floats


def column_norms(chunk: RowChunk) -> ColumnNorms:
    """Compute the norms of the columns over a chunk of rows. Raise RangeError if a value is not finite."""
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
            "the matrix J of derivatives has values that are not finite",
            "drop these rows or impute the values",
            code="SVFL-CRYPTO-RANGE",
        )
    unit = np.abs(X) / np.where(largest > 0, largest, 1.0)
    return ColumnNorms(largest, (unit**2).sum(axis=0), unit.sum(axis=0))


def merge_norms(norms: Iterable[ColumnNorms]) -> ColumnNorms:
    """Return the norms over all rows, from the norms over chunks of rows."""
    chunks = list(norms)
    largest = np.max([chunk.largest for chunk in chunks], axis=0)
    unit = np.where(largest > 0, largest, 1.0)
    ratios = [chunk.largest / unit for chunk in chunks]
    squares = sum(ratio**2 * chunk.squares for ratio, chunk in zip(ratios, chunks, strict=True))
    absolute = sum(ratio * chunk.absolute for ratio, chunk in zip(ratios, chunks, strict=True))
    return ColumnNorms(largest, np.asarray(squares), np.asarray(absolute))


@dataclass(frozen=True)
class RowEncoding:
    """The scales with which J becomes integers, and the layout of these integers in polynomials.

    Attributes:
        layout: the division of matrices into blocks (`ring_layout.py`).
        largest: the largest absolute value of each column (d,).
        scale: the integer that a column's largest absolute value becomes (d,).
        rho: the secret weight of each column in each check column (d, checks).
    """

    layout: RingLayout
    largest: Floats
    scale: Floats
    rho: Floats = field(repr=False)

    @classmethod
    def of(cls, layout: RingLayout, parameters: RowParameters, norms: ColumnNorms, rho: Floats) -> RowEncoding:
        """Choose the largest scales that the bounds T / sqrt(f) and L allow. Columns of 0 and 1 are encoded exactly.

        Args:
            layout: the division of matrices into blocks (`ring_layout.py`).
            parameters: the public parameters of the encryption scheme, such as its moduli.
            norms: the norms of the columns of J, over all rows.
            rho: the weights of the check columns (d, checks).

        Returns:
            The encoding: scales, layout and check columns.
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
        """The real value that the integer 1 represents in each column (d,)."""
        return self.largest / self.scale

    def same(self, other: RowEncoding) -> bool:
        """Return whether this encoding and another one give the same polynomials for the same J."""
        sizes = (self.layout.r, self.layout.s) == (other.layout.r, other.layout.s)
        return sizes and np.array_equal(self.rho, other.rho)


def column_cap(parameters: RowParameters, layout: RingLayout) -> float:
    """Return L, the bound on the sum of absolute values of an encoded column."""
    return parameters.profile.T * math.sqrt(layout.n / layout.columns)


def g_scale(parameters: RowParameters, layout: RingLayout, bound: float) -> float:
    """Return the scale of g: the integer that the real number 1 becomes.

    Args:
        parameters: the public parameters of the encryption scheme, such as its moduli.
        layout: the division of matrices into blocks (`ring_layout.py`).
        bound: public bound on the absolute values of g.

    Returns:
        The scale.

    Raises:
        RangeError: if the bound is too small for a finite scale.
    """
    scale: float = 0.49 * parameters.modulus / column_cap(parameters, layout) / bound
    if not math.isfinite(scale):
        raise RangeError(
            "the bound of the residuals g is too small for a fixed-point scale",
            "use a larger scale of g",
            code="SVFL-CRYPTO-RANGE",
        )
    return scale


def block_rows(layout: RingLayout, start: int, rows: int, block: int) -> tuple[int, int]:
    """Return the first row and the row after the last one that a sample block and a chunk of rows have in common.

    Args:
        layout: the division of matrices into blocks (`ring_layout.py`).
        start: number of the chunk's first row.
        rows: number of rows of the chunk.
        block: number of the sample block.

    Returns:
        The two row numbers.
    """
    return max(start, block * layout.s), min(start + rows, (block + 1) * layout.s)


def encoded_rows(chunk: RowChunk, encoding: RowEncoding, start: int, blocks: Sequence[int]) -> Floats:
    """Return the rows of some sample blocks as integers, with check columns, and with zeros for rows of other chunks.

    Args:
        chunk: the rows of J that this process stores.
        encoding: how the columns of J are scaled to integers, and which columns are check columns.
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
