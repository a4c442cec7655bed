"""Numbers as residues, so that a uniform mask hides them perfectly.

*The ring Z_2^b* for sums, b = 64 or 32. One public power-of-two scale 2^f, fixed by the bound and the number of
terms, so that the sum of `terms` values within the bound cannot wrap: terms (bound 2^f + 1/2) <= 2^(b-1) - 1.
Arithmetic is numpy's own on uint64 or uint32, which wraps. For four terms within 2^12, f is 48 or 16. A value is off
by at most 2^-(f+1), a sum of q values by at most q 2^-(f+1), plus the rounding of the final float64 (2^-53 of the
sum).

*The circle Z_2^b* = [0, 2 pi), b = 32 or 16, for phases w^T x + b of random features (FDSKL, Algorithm 3), which
enter only through a cosine. Wrapping is then harmless, no bound is needed, and adding a uniform element hides a phase
perfectly; the paper's real mask in [0, 2 pi) added to an unwrapped real does not.
`securevfl.families.fdskl.kernel_model` rounds phases to the circle, off by at most pi 2^-b radians and the rounding
of its float64.
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

COSINE_ERROR = math.pi * 2.0**-16 + 2.0**-25  # of `cos_circle`: half a table step, and the rounding of float32

_COS: NDArray[np.float32] = np.cos(np.arange(2**16) * (2 * math.pi / 2**16)).astype(np.float32)

_COS.flags.writeable = False


def scale_bits(bound: float, terms: int, bits: RingBits = 64) -> int:
    """Return the exponent f of the scale 2^f: the largest with terms (bound 2^f + 1/2) <= 2^(bits-1) - 1.

    ConfigError unless bound is finite and positive and 1 <= terms <= 2^32.
    """
    if not (math.isfinite(bound) and bound > 0):
        raise ConfigError("ring bound: expected a finite positive number; set it to the largest |value| a party sends")
    if not 1 <= terms <= MAX_RING_TERMS:
        raise ConfigError(
            f"ring terms: expected 1 to {MAX_RING_TERMS}, got {terms}; it is the number of values in a sum"
        )
    room = ((1 << bits - 1) - 1 - Fraction(terms, 2)) / (terms * Fraction(bound))
    f = room.numerator.bit_length() - room.denominator.bit_length()
    return f if room >= Fraction(2) ** f else f - 1


def to_ring(v: Floats, bound: float, terms: int, bits: RingBits = 64) -> Ring:
    """v (any shape), rounded to multiples of 2^-f, mod 2^bits. RangeError if any |v| > bound or is not finite."""
    f = scale_bits(bound, terms, bits)
    v = np.asarray(v, dtype=np.float64)
    if not bool(np.all(np.abs(v) <= bound)):  # false for NaN too
        raise RangeError(f"to_ring: a value is not finite or beyond the agreed bound {bound:g}; pass values within it")
    steps = np.rint(np.ldexp(v, f)).astype(np.int64)
    return steps.view(np.uint64) if bits == 64 else steps.astype(np.uint32)


def from_ring(total: Ring, bound: float, terms: int) -> Floats:
    """Return the real sum behind a sum (mod 2^64, or 2^32 as uint32) of at most `terms` results of `to_ring`, with
    its bound and terms."""
    bits: RingBits = 64 if total.itemsize == 8 else 32
    signed = total.view(np.int64 if bits == 64 else np.int32)
    return np.ldexp(signed.astype(np.float64), -scale_bits(bound, terms, bits))


def cos_circle(circle: NDArray[np.uint32] | NDArray[np.uint16]) -> NDArray[np.float32]:
    """Look up the cosine of each residue in a table of 2^16 entries.

    It is off by at most `COSINE_ERROR` (4.8e-5), and by 2^-25 for uint16.
    """
    steps = circle if circle.itemsize == 2 else (circle + np.uint32(1 << 15)) >> np.uint32(16)
    return np.take(_COS, steps, mode="clip")  # always in range; clip spares a check
