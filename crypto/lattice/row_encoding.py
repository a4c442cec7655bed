"""How rows of J become integers, whichever engine multiplies them, with check columns beside them.

Columns are measured one by one and scaled to fixed point. Norms add up over stretches of rows, so that every process
measures what it holds. Columns become integers x of ||x||_2 <= T / sqrt(f) and ||x||_1 <= L, f the columns in a block,
so that no sum leaves the modulus; the scales stay with the owner of J.

*Checks* tell a passive party whether what was opened is what was decrypted. A check column is a random combination of
the columns of J as they are encoded, integers x_j:

    rho_j    uniform in [-1, 1) / m, m = max(1, sqrt(d / 3)), drawn by the owner of J
    check    sum_j rho_j x_j, each entry rounded up or down at random

It is encoded, multiplied, blinded and opened as the columns are, so to the key holder it is uniform like them. With v_j
what the columns open to and v what the check does, in levels,

    v - sum_j rho_j v_j  modulo q / 2^drop

is the dither of the one less that of the others, and what rounding the check's entries adds: random, bounded, and known
in its deviation (`tolerance`). A value that was changed by Delta moves it by rho_j Delta, which nobody but the owner
knows. Each check and each output of g is a test of its own. docs/proof.md has the probabilities.

How many there are follows from the layout and d alone: those that fit in blocks that are there anyway (`checked`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.tall import Sparse, Stretch
from securevfl.crypto.lattice.layout import LEAST, MOST, Blocked, FixedPoint, Profile
from securevfl.crypto.prg import random_words
from securevfl.errors import RangeError

__all__ = [
    "DEVIATIONS",
    "Encoding",
    "Norms",
    "checked",
    "column_cap",
    "combinations",
    "fits",
    "g_scale",
    "merged",
    "norms",
    "scaled",
    "span",
    "tolerance",
    "with_checks",
]


READ = 512  # rows with known zeros that are measured at a time


L = TypeVar("L", bound=Blocked)


@dataclass(frozen=True)
class Norms:
    """Sizes of each column (d,): its largest |x|, and the sums of squares and of |x| relative to that."""

    largest: Floats
    squares: Floats
    absolute: Floats


def norms(stretch: Stretch) -> Norms:
    """Compute the norms of a stretch's columns. RangeError if one is not finite."""
    if isinstance(stretch.rows, Sparse):
        return _sparse_norms(stretch.rows)
    return merged(_norms(X) for _, X in stretch.blocks())


def _sparse_norms(rows: Sparse) -> Norms:
    """Compute the norms of rows that are read without their zeros, `READ` rows at a time.

    In more rows at a time, more columns would have entries.
    """
    n, d = rows.shape
    found = []
    for start in range(0, n, READ):
        columns, part = rows.part(start, min(n, start + READ))
        one, whole = _norms(part), np.zeros((3, d))
        whole[:, columns] = one.largest, one.squares, one.absolute
        found.append(Norms(*whole))
    return merged(found)


def _norms(X: Floats) -> Norms:
    largest = np.abs(X).max(axis=0)
    if not np.isfinite(largest).all():
        raise RangeError("lattice: J has values that are not finite; drop or impute them first")
    unit = np.abs(X) / np.where(largest > 0, largest, 1.0)
    return Norms(largest, (unit**2).sum(axis=0), unit.sum(axis=0))


def merged(found: Iterable[Norms]) -> Norms:
    """Norms of all rows together."""
    each = list(found)
    largest = np.max([one.largest for one in each], axis=0)
    unit = np.where(largest > 0, largest, 1.0)
    shares = [one.largest / unit for one in each]
    squares = sum(share**2 * one.squares for share, one in zip(shares, each, strict=True))
    absolute = sum(share * one.absolute for share, one in zip(shares, each, strict=True))
    return Norms(largest, np.asarray(squares), np.asarray(absolute))


@dataclass(frozen=True)
class Encoding(Generic[L]):
    """How J becomes integers in coefficients: the layout, each column's largest |x|, and the integers to that (d,).

    rho: the secret share of each column in each check (d x checks).
    """

    layout: L
    largest: Floats
    scale: Floats
    rho: Floats = field(repr=False)

    @classmethod
    def of(cls, layout: L, parameters: FixedPoint, found: Norms, rho: Floats) -> Encoding[L]:
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

    def same(self, other: Encoding[L]) -> bool:
        """Whether plaintexts of the one are those of the other, for the same J."""
        sizes = (self.layout.s, self.layout.columns) == (other.layout.s, other.layout.columns)
        return sizes and np.array_equal(self.rho, other.rho)


def column_cap(parameters: FixedPoint, layout: Blocked) -> float:
    """Compute L, the greatest sum of |x| over an encoded column."""
    return parameters.profile.T * math.sqrt(layout.n / layout.columns)


def g_scale(parameters: FixedPoint, layout: Blocked, bound: float) -> float:
    """Compute how many integers a unit of g is. RangeError if the bound on |g| is too small for that."""
    scale: float = 0.49 * parameters.modulus / column_cap(parameters, layout) / bound
    if not math.isfinite(scale):
        raise RangeError("lattice: the bound on g is too small for a fixed-point scale; scale g up")
    return scale


def span(layout: Blocked, start: int, rows: int, block: int) -> tuple[int, int]:
    """Return the rows of the matrix, from and to, that a sample block spans in a stretch that begins at `start`."""
    return max(start, block * layout.s), min(start + rows, (block + 1) * layout.s)


def scaled(stretch: Stretch, encoding: Encoding[L], start: int, blocks: Sequence[int]) -> Floats:
    """Rows of these sample blocks as integers, checks beside (len(blocks) * s, width), with zeros for rows of other
    stretches.

    start: the stretch's first row.
    """
    layout, d = encoding.layout, encoding.width
    unit = np.where(encoding.largest > 0, encoding.largest, 1.0)
    rows = np.zeros((len(blocks), layout.s, d))
    for place, block in enumerate(blocks):
        begin, end = span(layout, start, len(stretch), block)
        own = np.rint(stretch.rows[slice(begin - start, end - start)] / unit * encoding.scale)
        rows[place, begin - block * layout.s : end - block * layout.s] = with_checks(own, encoding.rho)
    return rows.reshape(-1, d)


DEVIATIONS = 9.0  # a test fails by chance with probability 2 exp(-81 / 2) = 2^-57.4 at most
ROUNDED = 0.25  # variance of a rounding to a whole level or entry, at most, as a sub-Gaussian one


def checked(layout: Blocked, d: int) -> int:
    """How many columns are multiplied for d of J: these, and as many checks as fit in blocks that are there anyway."""
    return min(layout.column_blocks(d + LEAST) * layout.columns, d + MOST)


def combinations(d: int, checks: int) -> Floats:
    """rho (d x checks), drawn afresh."""
    words = random_words(d * checks).reshape(d, checks)
    uniform = np.asarray((words >> np.uint64(11)) * 2.0**-52 - 1.0, np.float64)
    return uniform / max(1.0, math.sqrt(d / 3))


def with_checks(ints: Floats, rho: Floats) -> Floats:
    """Rows of whole numbers (m x d), and their check columns beside them (m x (d + checks))."""
    exact = ints @ rho
    parts = (random_words(exact.size) >> np.uint64(11)) * 2.0**-53
    return np.concatenate([ints, np.floor(exact + parts.reshape(exact.shape))], axis=1)


def tolerance(rho: Floats, layout: Blocked, profile: Profile, unit: float) -> Floats:
    """Return (checks,): how far a test may be from zero, in levels. unit: levels that 1 in an entry moves a value by, g
    at its bound."""
    dither = 4.0 ** (profile.k - profile.drop - 1) + ROUNDED
    spread = np.sqrt(dither * (1 + (rho**2).sum(axis=0)) + ROUNDED * layout.n * unit**2)
    ones = layout.sample_blocks + layout.column_blocks(len(rho)) * np.abs(rho).max()  # in place of zero polynomials
    return np.asarray(DEVIATIONS * spread + unit * ones)


def fits(opened: Floats, rho: Floats, levels: float, within: Floats) -> bool:
    """Whether opened levels ((d + checks) x c), about zero, pass all tests."""
    rest = opened[len(rho) :] - rho.T @ opened[: len(rho)]
    rest -= levels * np.rint(rest / levels)
    return bool((np.abs(rest) <= within[:, None]).all())
