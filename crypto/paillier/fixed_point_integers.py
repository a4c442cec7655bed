"""Fixed point for Paillier: real numbers become integers, multiplied by one scale for a vector or for each column.

A key holder encrypts a matrix g (n, c), and an evaluator computes the product J^T g with its matrix J (n, d).
The scale of a vector that is sent depends only on public numbers, its length and its agreed bound. Floating-point
exponents, in contrast, would reveal something about the values. The columns of the matrix J are never sent; their
scales depend on the data, and stay with the party that has J.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.errors import RangeError

Ints = NDArray[np.int64]

_TINY = 1e-290  # a column whose entries are all smaller is treated as zero, because its scale would overflow


def check_bound(bound: float) -> float:
    """Return the bound as a float. Raise RangeError unless it is finite and positive."""
    if not (math.isfinite(bound) and bound > 0):
        raise RangeError(
            f"the bound {bound} is not a finite number above 0",
            "pass the largest absolute value that a residual of the loss can have",
            code="SVFL-CRYPTO-RANGE",
        )
    return float(bound)


def encode(values: Floats, bound: float, bits: int) -> Ints:
    """Return round(values * 2^bits / bound), so that rounding changes a value by at most bound * 2^-(bits + 1).

    Args:
        values: values of any shape.
        bound: public bound on their absolute values.
        bits: number of bits of the largest integer.

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
    """Return the real number that an integer of `encode`, or a sum of such integers, represents."""
    return float(number) / 2.0**bits * bound


def column_bits(n: int) -> int:
    """Return the number of bits for entries of J with which the error of J^T g does not grow with the number of rows.

    With log2(n) + 10 bits, rounding changes entry j of J^T g by at most 2^-11 * max|J[:, j]| * max|g|.

    Args:
        n: number of rows.

    Returns:
        The number of bits.
    """
    return max(16, (n - 1).bit_length() + 10)


def encode_columns(J: Floats, bits: int) -> tuple[Ints, Floats]:
    """Return J as integers of at most `bits` bits, and the scale of each column.

    A column of small multiples of one number, such as 0/1 flags or counts, is represented exactly by these multiples.

    Args:
        J: the matrix (n, d).
        bits: number of bits of the largest integer.

    Returns:
        The integers (n, d) and the scales (d,): the integers are J * scale, rounded.

    Raises:
        RangeError: if J is not a matrix or not finite.
    """
    X = np.asarray(J, dtype=np.float64)
    if X.ndim != 2:
        raise RangeError(f"J has {X.ndim} dimensions instead of 2", code="SVFL-CRYPTO-SHAPE")
    if not np.isfinite(X).all():
        raise RangeError(
            "the matrix J of derivatives has entries that are not finite",
            "impute or drop them",
            code="SVFL-CRYPTO-RANGE",
        )
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
