"""Quantization of secret-shared sums: two parties round a sum by cutting off the lowest bits of its two shares.

Two parties A and B have random-looking shares of a sum, H = h_A + h_B modulo 2^L. There are 2^k levels: multiples of
s = 2^step. Each party computes floor(h / s) modulo 2^k from its share. The fractional part of h / s is uniformly
random, so the sum of the two results, plus one, is H / s rounded up or down at random, without bias. Levels are modulo
2^k: a sum outside of [-reach, reach) with reach = 2^(k-1) * s would be read as one inside (it "wraps").

A score is therefore disclosed only if |H| is at most 5/8 of `reach`, or less if there are few levels
(`Quantizer.max_reported`). The parties move a larger sum to `reach`, far from every sum that is disclosed, by looking
up a shift at the sum's highest bits (`Quantizer.overflow_shifts`). The receiver learns only that the sum is out of
range.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.crypto.share_ring import ShareRing, Words
from securevfl.protocols.shares.fixed_point import FixedPointEncoding

COVERED_FRACTION = 0.625
"""Scores up to this fraction of `reach` are disclosed."""

MOVED_FRACTION = 0.875
"""Out-of-range sums are moved beyond this fraction of `reach`; reading them adds an error of up to 1.5 levels."""

CLIP_FRACTION = 0.75
"""For metrics of classes, sums beyond this fraction of `reach` are clipped."""

CLIPPED_FRACTION = 0.8125
"""A clipped sum becomes this fraction of `reach`, with its sign."""

_EXACT_FRACTION_BITS = 16


@dataclass(frozen=True)
class Quantizer:
    """The 2^bits levels, multiples of 2^step, to which sums are rounded before they are disclosed."""

    step: int
    bits: int

    @classmethod
    def over(cls, encoding: FixedPointEncoding, step: float, reach: float) -> Quantizer:
        """Return the quantizer for sums in [-reach, reach], or in the largest range that shares can represent.

        Args:
            encoding: the fixed-point encoding of the sums (fixed_point.py).
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
        """Return a copy whose levels have no more bits than shares of this encoding have from 2^step upwards."""
        return replace(self, bits=min(self.bits, encoding.bits - encoding.f_x - encoding.f_theta - self.step))

    @property
    def size(self) -> float:
        """The distance s between two neighbouring levels."""
        return float(2.0**self.step)

    @property
    def reach(self) -> float:
        """The bound 2^(bits - 1) * s: sums with a larger absolute value wrap."""
        return float(2.0 ** (self.bits - 1 + self.step))

    @property
    def max_reported(self) -> float:
        """The largest absolute value of a sum that is disclosed."""
        return min(COVERED_FRACTION * self.reach, MOVED_FRACTION * self.reach - 1.5 * self.size)

    def overflow_shifts(self, knots: Floats) -> Words:
        """Return a table of shifts: the number of levels to add to a sum, so that an out-of-range sum becomes `reach`.

        Args:
            knots: the sum that each table entry represents (n,).

        Returns:
            The shifts (n,) modulo 2^bits; 0 for a sum in range.
        """
        shifts = np.where(np.abs(knots) < self.max_reported, 0.0, np.rint((self.reach - knots) / self.size))
        return ShareRing(self.bits).of(shifts.astype(np.int64))

    def mark_overflow(self, sums: Floats) -> Floats:
        """Return a copy of dequantized sums (any shape), with infinity in place of sums that are out of range."""
        return np.where(np.abs(sums) > self.max_reported, np.inf, sums)

    def can_clip(self, encoding: FixedPointEncoding) -> bool:
        """Return whether a lookup table of 256 entries resolves sums finely enough to decide which ones to clip."""
        return bool(2.0**encoding.fine_step <= self.reach / 8)

    def clipped(self, sums: Floats) -> Floats:
        """Return a copy of sums (any shape) in which those beyond the range of metrics are clipped."""
        limit = np.copysign(CLIPPED_FRACTION * self.reach, sums)
        return np.where(np.abs(sums) <= CLIP_FRACTION * self.reach, sums, limit)

    def clip_shifts(self, knots: Floats) -> Words:
        """Return a table of shifts: the number of levels to add to a sum in order to clip it.

        Args:
            knots: the sum that each table entry represents (any shape).

        Returns:
            The shifts modulo 2^bits, in the shape of `knots`; 0 for a sum that is not clipped.
        """
        shifts = np.rint((self.clipped(knots) - knots) / self.size)
        return ShareRing(self.bits).of(shifts.astype(np.int64))

    @classmethod
    def exact(cls, encoding: FixedPointEncoding) -> Quantizer:
        """Return the quantizer with 16 fractional bits and all integer bits that shares have, for exact scores."""
        bits = encoding.bits - encoding.f_x - encoding.f_theta + _EXACT_FRACTION_BITS
        return cls(-_EXACT_FRACTION_BITS, bits)

    def shift(self, encoding: FixedPointEncoding) -> int:
        """Return the number of lowest bits of a share that are cut off, because they are less than one level."""
        return encoding.f_x + encoding.f_theta + self.step

    def truncate(self, encoding: FixedPointEncoding, h: Words) -> Words:
        """Return floor(h / s) modulo 2^bits for each share h (any shape); two such numbers add up to a level."""
        return (h >> np.uint64(self.shift(encoding))) & np.uint64(2**self.bits - 1)

    def dequantize(self, total: Words, *, rounded_down: int = 2) -> Floats:
        """Return the real sum that two truncated shares represent.

        A share that was rounded down is half a level too small on average, which is corrected. A share to which a
        random number below one level (a dither) was added first has the correct mean.

        Args:
            total: the sum of the two truncated shares (any shape).
            rounded_down: the number of the two shares that were truncated without a dither, 1 or 2.

        Returns:
            The sums, in the shape of `total`.
        """
        signed = ShareRing(self.bits).signed(total & np.uint64(2**self.bits - 1))
        return (signed.astype(np.float64) + rounded_down / 2) * self.size
