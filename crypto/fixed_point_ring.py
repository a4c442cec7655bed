"""Real numbers as integers modulo 2^b, so that adding a uniformly random mask hides them perfectly.

For sums of real numbers, b is 64 or 32, and the integers modulo 2^b are called the ring. A number is multiplied by the
scale 2^f and rounded. f is public: it is computed from the bound of the numbers and the number of terms, so that no sum
wraps: terms * (bound * 2^f + 1/2) <= 2^(b-1) - 1. For four terms up to 2^12, f is 48 (b = 64) or 16 (b = 32). The error
of one number is at most 2^-(f+1), and that of a sum of q numbers at most q * 2^-(f+1), plus the rounding of the final
float64 (2^-53 of the sum). numpy's arithmetic on uint64 and uint32 wraps modulo 2^b.

For phases, b is 32 or 16, and the integers modulo 2^b are called the circle: k represents the angle k * 2 pi / 2^b. The
phases are angles w^T x + offset of random Fourier features (FDSKL, Algorithm 3). Only their cosines are used, so
wrapping is harmless and no bound is needed. A uniform mask modulo 2^b hides a phase perfectly. The mask of the paper, a
real number in [0, 2 pi) that is added without wrapping, does not. `securevfl.families.fdskl.kernel_model` rounds phases
to the circle, with an error of at most pi / 2^b radians plus the rounding of float64.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.errors import ConfigError, RangeError

Ring = NDArray[np.uint64] | NDArray[np.uint32]
RingBits = Literal[32, 64]

MAX_RING_TERMS = 2**32
COSINE_ERROR = math.pi * 2.0**-16 + 2.0**-25
"""Largest error of `cos_circle`: half of the table's spacing, plus the rounding of float32."""

_COSINES: NDArray[np.float32] = np.cos(np.arange(2**16) * (2 * math.pi / 2**16)).astype(np.float32)
_COSINES.flags.writeable = False


def scale_bits(bound: float, terms: int, bits: RingBits = 64) -> int:
    """Return the largest exponent f such that sums of numbers with the scale 2^f cannot wrap.

    Args:
        bound: largest absolute value of a term.
        terms: number of terms of a sum, from 1 to 2^32.
        bits: the number of bits b of the ring.

    Returns:
        The exponent.

    Raises:
        ConfigError: if the bound is not finite and positive, or the number of terms is out of range.
    """
    if not (math.isfinite(bound) and bound > 0):
        raise ConfigError(
            "the bound of values in a sum is not a finite positive number",
            "set it to the largest absolute value that a party sends",
            code="SVFL-CRYPTO-PARAMETERS",
        )
    if not 1 <= terms <= MAX_RING_TERMS:
        raise ConfigError(
            f"a sum cannot have {terms} terms",
            f"use 1 to {MAX_RING_TERMS} terms",
            code="SVFL-CRYPTO-PARAMETERS",
        )
    room = ((1 << bits - 1) - 1 - Fraction(terms, 2)) / (terms * Fraction(bound))
    f = room.numerator.bit_length() - room.denominator.bit_length()
    return f if room >= Fraction(2) ** f else f - 1


def to_ring(v: Floats, bound: float, terms: int, bits: RingBits = 64) -> Ring:
    """Round numbers to multiples of 2^-f, and return them as integers modulo 2^bits.

    Args:
        v: numbers of any shape.
        bound: largest absolute value; f depends on it (`scale_bits`).
        terms: number of terms of the sum in which they are used; f depends on it.
        bits: the number of bits b of the ring.

    Returns:
        The integers modulo 2^b, in the shape of `v`.

    Raises:
        RangeError: if a value is not finite or exceeds the bound.
    """
    f = scale_bits(bound, terms, bits)
    v = np.asarray(v, dtype=np.float64)
    if not bool(np.all(np.abs(v) <= bound)):  # the comparison is false for NaN
        raise RangeError(f"a value is not finite or exceeds the agreed bound {bound:g}", code="SVFL-CRYPTO-RANGE")
    steps = np.rint(np.ldexp(v, f)).astype(np.int64)
    return steps.view(np.uint64) if bits == 64 else steps.astype(np.uint32)


def from_ring(total: Ring, bound: float, terms: int) -> Floats:
    """Return the real sum that each element of the ring represents.

    Args:
        total: sums modulo 2^b of at most `terms` results of `to_ring`, as uint64 or uint32.
        bound: the bound that `to_ring` was called with.
        terms: the number of terms that `to_ring` was called with.

    Returns:
        The real sums, in the shape of `total`.
    """
    bits: RingBits = 64 if total.itemsize == 8 else 32
    signed = total.view(np.int64 if bits == 64 else np.int32)
    return np.ldexp(signed.astype(np.float64), -scale_bits(bound, terms, bits))


def cos_circle(circle: NDArray[np.uint32] | NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return the cosine of each element of the circle, from a table of 2^16 entries.

    Args:
        circle: integers modulo 2^b, which represent angles, in any shape.

    Returns:
        The cosines. Their error is at most `COSINE_ERROR` (4.8e-5), or 2^-25 for elements of 16 bits.
    """
    steps = circle if circle.itemsize == 2 else (circle + np.uint32(1 << 15)) >> np.uint32(16)
    return np.take(_COSINES, steps, mode="clip")  # indices are always valid; mode="clip" skips the check
