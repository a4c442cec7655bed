"""Real numbers as elements of a finite group, so that adding a uniform mask hides them perfectly.

*The ring Z_2^b* for sums, with b = 64 or 32. The scale is a public power of two, 2^f, which the bound and the number of
terms determine such that a sum of `terms` values within the bound cannot wrap: terms (bound 2^f + 1/2) <= 2^(b-1) - 1.
numpy's arithmetic on uint64 and uint32 wraps as needed. For four terms within 2^12, f is 48 or 16. The error of a value
is at most 2^-(f+1), and that of a sum of q values at most q 2^-(f+1), plus the rounding of the final float64 (2^-53 of
the sum).

*The circle Z_2^b* = [0, 2 pi), with b = 32 or 16, for phases w^T x + b of random features (FDSKL, Algorithm 3). Phases
are used only in a cosine, so wrapping is harmless and no bound is needed. Adding a uniform element hides a phase
perfectly; the paper's real mask in [0, 2 pi), added to a real number that does not wrap, does not.
`securevfl.families.fdskl.kernel_model` rounds phases to the circle, with an error of at most pi 2^-b radians plus the
rounding of float64.
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
"""Largest error of `cos_circle`: half a step of the table plus the rounding of float32."""

_COSINES: NDArray[np.float32] = np.cos(np.arange(2**16) * (2 * math.pi / 2**16)).astype(np.float32)
_COSINES.flags.writeable = False


def scale_bits(bound: float, terms: int, bits: RingBits = 64) -> int:
    """Return the largest exponent f of the scale 2^f with terms (bound 2^f + 1/2) <= 2^(bits-1) - 1.

    Args:
        bound: largest absolute value of a term.
        terms: number of terms of a sum, from 1 to 2^32.
        bits: size of the ring.

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
    """Round values to multiples of 2^-f and return them modulo 2^bits.

    Args:
        v: values of any shape.
        bound: largest absolute value, see `scale_bits`.
        terms: number of terms of a sum.
        bits: size of the ring.

    Returns:
        The elements, in the shape of `v`.

    Raises:
        RangeError: if a value is not finite or exceeds the bound.
    """
    f = scale_bits(bound, terms, bits)
    v = np.asarray(v, dtype=np.float64)
    if not bool(np.all(np.abs(v) <= bound)):  # false for NaN too
        raise RangeError(f"a value is not finite or exceeds the agreed bound {bound:g}", code="SVFL-CRYPTO-RANGE")
    steps = np.rint(np.ldexp(v, f)).astype(np.int64)
    return steps.view(np.uint64) if bits == 64 else steps.astype(np.uint32)


def from_ring(total: Ring, bound: float, terms: int) -> Floats:
    """Return the real sum that an element of the ring represents.

    Args:
        total: a sum of at most `terms` results of `to_ring`, as uint64 or uint32.
        bound: the bound that `to_ring` was called with.
        terms: the number of terms that `to_ring` was called with.

    Returns:
        The sum, in the shape of `total`.
    """
    bits: RingBits = 64 if total.itemsize == 8 else 32
    signed = total.view(np.int64 if bits == 64 else np.int32)
    return np.ldexp(signed.astype(np.float64), -scale_bits(bound, terms, bits))


def cos_circle(circle: NDArray[np.uint32] | NDArray[np.uint16]) -> NDArray[np.float32]:
    """Look up the cosine of each element of the circle in a table of 2^16 entries.

    Args:
        circle: elements of any shape.

    Returns:
        The cosines, with an error of at most `COSINE_ERROR` (4.8e-5), or 2^-25 for uint16.
    """
    steps = circle if circle.itemsize == 2 else (circle + np.uint32(1 << 15)) >> np.uint32(16)
    return np.take(_COSINES, steps, mode="clip")  # the index is always in range; clip avoids a check
