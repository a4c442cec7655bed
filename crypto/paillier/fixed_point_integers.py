"""Real numbers as integers, with one scale for a vector or one scale for each column.

A vector that is sent has a scale that depends on public numbers only: its length and its agreed bound. Exponents of
floating-point numbers, in contrast, would reveal information about the values. The columns of J are never sent; their
scales depend on the data and stay with the evaluator.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.errors import RangeError

Ints = NDArray[np.int64]

_TINY = 1e-290  # a column with smaller entries counts as zero, because its scale would overflow


def check_bound(bound: float) -> float:
    """Return the bound; RangeError unless it is finite and positive."""
    if not (math.isfinite(bound) and bound > 0):
        raise RangeError(
            f"the bound {bound} is not a finite number above 0",
            "pass the bound on |g| of the loss",
            code="SVFL-CRYPTO-RANGE",
        )
    return float(bound)


def encode(values: Floats, bound: float, bits: int) -> Ints:
    """Return round(values * 2^bits / bound), whose error is at most bound * 2^-(bits + 1).

    Args:
        values: values of any shape.
        bound: largest absolute value.
        bits: bits of the largest integer.

    Returns:
        The integers.

    Raises:
        RangeError: if a value is not finite or exceeds the bound.
    """
    check_bound(bound)
    v = np.asarray(values, dtype=np.float64)
    if not np.isfinite(v).all():
        raise RangeError("the vector has entries that are not finite", "pass finite numbers", code="SVFL-CRYPTO-RANGE")
    if v.size and float(np.abs(v).max()) > bound:
        raise RangeError(f"the vector has entries that exceed the agreed bound {bound}", code="SVFL-CRYPTO-RANGE")
    return np.rint(v / bound * 2.0**bits).astype(np.int64)


def decode(number: int, bound: float, bits: int) -> float:
    """Return the real number that an integer of `encode`, or a sum of such, represents."""
    return float(number) / 2.0**bits * bound


def column_bits(n: int) -> int:
    """Return the bits of the entries of J that keep the error of a sum over n samples independent of n.

    With b = log2(n) + 10 bits, rounding changes X_j^T g by at most 2^-11 max|X_j| max|g|: 4.9e-4 at unit scale.

    Args:
        n: number of samples.

    Returns:
        The bits.
    """
    return max(16, (n - 1).bit_length() + 10)


def encode_columns(J: Floats, bits: int) -> tuple[Ints, Floats]:
    """Return J as integers of at most `bits` bits, and the scale of each column.

    Columns of small multiples of one number, such as 0/1 flags and counts, become these multiples exactly.

    Args:
        J: the matrix (n, d).
        bits: bits of the largest integer.

    Returns:
        The integers (n, d) and the scales (d,), with integers = J * scale.

    Raises:
        RangeError: if J is not a matrix or not finite.
    """
    X = np.asarray(J, dtype=np.float64)
    if X.ndim != 2:
        raise RangeError(f"J has {X.ndim} dimensions instead of 2", code="SVFL-CRYPTO-SHAPE")
    if not np.isfinite(X).all():
        raise RangeError("J has entries that are not finite", "impute or drop them", code="SVFL-CRYPTO-RANGE")
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
