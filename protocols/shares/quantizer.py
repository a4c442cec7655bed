"""Quantization of shared sums: the level of a sum is read from the top bits of its shares.

There are 2^k levels, spaced s = 2^step apart. Each holder truncates its share of H = h_A + h_B to the k bits from s
upwards, so the two truncated shares are H / s, each rounded down. The fractional part of a share is uniform; their sum
plus one is therefore H / s rounded up or down at random, without bias. A carry out of the highest bit vanishes: a sum
outside of [-2^(k-1) s, 2^(k-1) s) wraps.

A score is therefore disclosed only if |H| is at most 5/8 of that range, or less if there are few levels
(`Quantizer.max_reported`). A look-up of the highest bits moves a larger sum to 2^(k-1) s, which no other sum is near
(`Quantizer.overflow_shifts`). The receiver learns only that the sum is out of range.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.crypto.share_ring import ShareRing, Words
from securevfl.protocols.shares.fixed_point import FixedPointEncoding

COVERED_FRACTION = 0.625
"""Share of the quantizer's range within which scores are disclosed."""

MOVED_FRACTION = 0.875
"""Sums that are moved end up at least this far out, and are read with an error of at most 1.5 levels."""

CLIP_FRACTION = 0.75
"""Share of the range beyond which sums are clipped for metrics of classes."""

CLIPPED_FRACTION = 0.8125
"""Share of the range at which a clipped sum is placed."""

_EXACT_FRACTION_BITS = 16


@dataclass(frozen=True)
class Quantizer:
    """2^bits levels, spaced 2^step apart, to which sums are rounded before they are disclosed."""

    step: int
    bits: int

    @classmethod
    def over(cls, encoding: FixedPointEncoding, step: float, reach: float) -> Quantizer:
        """Return the quantizer for sums in [-reach, reach], as far as shares have bits.

        Args:
            encoding: the encoding of the sums.
            step: the spacing of levels, a power of two.
            reach: the bound of the sums.

        Returns:
            The quantizer.
        """
        return cls.covering(step, reach).within(encoding)

    @classmethod
    def covering(cls, step: float, reach: float) -> Quantizer:
        """Return the quantizer for sums in [-reach, reach] with levels `step` apart, a power of two."""
        log = int(np.log2(step))
        return cls(log, 1 + int(np.ceil(np.log2(reach))) - log)

    def within(self, encoding: FixedPointEncoding) -> Quantizer:
        """Return the quantizer with at most the bits that shares of this encoding have above `step`."""
        return replace(self, bits=min(self.bits, encoding.bits - encoding.f_x - encoding.f_theta - self.step))

    @property
    def size(self) -> float:
        """The spacing of levels."""
        return float(2.0**self.step)

    @property
    def reach(self) -> float:
        """The largest absolute value of a sum that does not wrap."""
        return float(2.0 ** (self.bits - 1 + self.step))

    @property
    def max_reported(self) -> float:
        """The largest absolute value of a sum that is disclosed."""
        return min(COVERED_FRACTION * self.reach, MOVED_FRACTION * self.reach - 1.5 * self.size)

    def overflow_shifts(self, knots: Floats) -> Words:
        """Return the number of levels, modulo 2^bits, by which an out-of-range sum is moved, for each table entry.

        Args:
            knots: the sum at each entry of a table (n,).

        Returns:
            The shifts (n,); 0 for a sum in range.
        """
        shifts = np.where(np.abs(knots) < self.max_reported, 0.0, np.rint((self.reach - knots) / self.size))
        return ShareRing(self.bits).of(shifts.astype(np.int64))

    def mark_overflow(self, sums: Floats) -> Floats:
        """Return dequantized sums (any shape), with infinity for those that are out of range."""
        return np.where(np.abs(sums) > self.max_reported, np.inf, sums)

    def can_clip(self, encoding: FixedPointEncoding) -> bool:
        """Return whether the highest bits show precisely enough which sums are near the end of the range."""
        return bool(2.0 ** (encoding.integer_bits - encoding.top_bits) <= self.reach / 8)

    def clip_shifts(self, knots: Floats) -> Words:
        """Return the number of levels, modulo 2^bits, by which a sum is moved to clip it, for each table entry.

        Args:
            knots: the sum at each entry of a table (n,).

        Returns:
            The shifts (n,); 0 for a sum that is not clipped.
        """
        clipped = np.copysign(CLIPPED_FRACTION * self.reach, knots)
        shifts = np.where(np.abs(knots) <= CLIP_FRACTION * self.reach, 0.0, np.rint((clipped - knots) / self.size))
        return ShareRing(self.bits).of(shifts.astype(np.int64))

    @classmethod
    def exact(cls, encoding: FixedPointEncoding) -> Quantizer:
        """Return the quantizer that keeps 16 fractional bits and all integer bits of shares."""
        bits = encoding.bits - encoding.f_x - encoding.f_theta + _EXACT_FRACTION_BITS
        return cls(-_EXACT_FRACTION_BITS, bits)

    def shift(self, encoding: FixedPointEncoding) -> int:
        """Return the number of bits of a share below one level."""
        return encoding.f_x + encoding.f_theta + self.step

    def truncate(self, encoding: FixedPointEncoding, h: Words) -> Words:
        """Return the bits of a share h (any shape) that represent its level, as words below 2^bits."""
        return (h >> np.uint64(self.shift(encoding))) & np.uint64(2**self.bits - 1)

    def dequantize(self, total: Words, *, rounded_down: int = 2) -> Floats:
        """Return the mean of the sums (any shape) that lead to a sum of two truncated shares.

        Args:
            total: the sum of the truncated shares.
            rounded_down: how many of the two shares were truncated without a dither below one level.

        Returns:
            The sums.
        """
        signed = ShareRing(self.bits).signed(total & np.uint64(2**self.bits - 1))
        return (signed.astype(np.float64) + rounded_down / 2) * self.size
