"""Reals as integers at one scale a vector, or one scale a column.

What travels has a scale that depends on public numbers only (the vector's length and its agreed bound), so no
exponent in the clear tells anything about the values, as floats with an exponent each would. The columns of J never
travel: their scales are private to the evaluator and follow the data.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.errors import RangeError

Ints = NDArray[np.int64]

_TINY = 1e-290  # a column whose largest entry is below this counts as zero: its scale would overflow


def check_bound(bound: float) -> float:
    """`bound` itself. RangeError unless it is finite and positive."""
    if not (math.isfinite(bound) and bound > 0):
        raise RangeError(f"a bound must be a finite number above 0, got {bound}; pass the loss's bound on |g|")
    return float(bound)


def encode(values: Floats, bound: float, bits: int) -> Ints:
    """round(values * 2^bits / bound), any shape; magnitudes are at most 2^bits.

    The error is at most bound * 2^-(bits+1) a value. RangeError if any value is not finite or |value| > bound.
    """
    check_bound(bound)
    v = np.asarray(values, dtype=np.float64)
    if not np.isfinite(v).all():
        raise RangeError("the vector to encrypt has entries that are not finite; pass numbers")
    if v.size and float(np.abs(v).max()) > bound:
        raise RangeError(f"the vector to encrypt has entries beyond the agreed bound {bound}; pass values within it")
    return np.rint(v / bound * 2.0**bits).astype(np.int64)


def decode(number: int, bound: float, bits: int) -> float:
    """Return the real that `encode` (or a sum of its outputs) stands for."""
    return float(number) / 2.0**bits * bound


def column_bits(n: int) -> int:
    """Bits of J's magnitude that keep the error of a sum over n samples independent of n.

    With b = log2(n) + 10 bits, rounding J moves X_j^T g by at most 2^-11 max|X_j| max|g|: 4.9e-4 at unit scale.
    """
    return max(16, (n - 1).bit_length() + 10)


def encode_columns(J: Floats, bits: int) -> tuple[Ints, Floats]:
    """J (n x d) as integers of at most `bits` bits, and each column's scale (d,): integers = J * scale.

    Columns of small multiples of one number (0/1 flags, counts) become those multiples, exactly. RangeError if J is
    not finite.
    """
    X = np.asarray(J, dtype=np.float64)
    if X.ndim != 2:
        raise RangeError(f"J must be a matrix (n x d), got {X.ndim} dimensions")
    if not np.isfinite(X).all():
        raise RangeError("J has entries that are not finite; impute or drop them")
    top = 2**bits - 1
    size = np.abs(X)
    largest = size.max(axis=0, initial=0.0)
    alive = largest > _TINY
    scales = np.where(alive, top / np.where(alive, largest, 1.0), 1.0)
    smallest = np.where(size > 0, size, np.inf).min(axis=0, initial=np.inf)
    unit = np.where(alive & (smallest > _TINY), smallest, 1.0)
    with np.errstate(over="ignore", invalid="ignore"):
        counts = np.rint(X / unit)
        exact = alive & (largest / unit <= top) & (counts * unit == X).all(axis=0)
    scales = np.where(exact, 1.0 / unit, scales)
    ints: Ints = np.where(exact, counts, np.rint(X * np.where(alive, scales, 0.0))).astype(np.int64)
    return ints, scales
