"""Levels of shared sums: which of 2^k steps a sum is at, read from the top of its shares. What outputs are made of.

A level takes the k bits of a share from s = 2^step on, so that of h_A + h_B = H the two cut shares say H / s, each
rounded down. As the fraction of a share is uniform, their sum and one is H / s rounded up or down at random, without
bias. A carry out of the highest bit vanishes: sums that are not within 2^(k - 1) s wrap.

So a score is told only where |H| is at most 5/8 of that, or less where levels are few (`covered`). By a look-up of
its highest bits a sum that is farther is moved to where levels begin anew, 2^(k - 1) s, which no other sum comes near
(`moves`): it is known to be beyond and no more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.crypto.share_ring import ShareRing, Words
from securevfl.protocols.shares.fixed_point import FixedPointEncoding

COVERED_FRACTION = 0.625  # of what levels reach: sums that are told

MOVED_FRACTION = 0.875  # of it: sums that are moved lie at least so far out, and are read no more than 1.5 levels off

CLIP_FRACTION, CLIPPED_FRACTION = (
    0.75,
    0.8125,
)  # of it: from where on sums of metrics count as at the end, and where that is

_FRACTION = 16  # bits of an exact sum below one


@dataclass(frozen=True)
class Quantizer:
    """The 2^bits levels, each 2^step apart, to which sums are rounded before they are told."""

    step: int
    bits: int

    @classmethod
    def over(cls, numbers: FixedPointEncoding, step: float, reach: float) -> Quantizer:
        """Levels `step` apart (a power of two) over sums up to `reach` on either side, as far as shares have bits."""
        log = int(np.log2(step))
        return cls(log, 1 + int(np.ceil(np.log2(reach))) - log).within(numbers)

    def within(self, numbers: FixedPointEncoding) -> Quantizer:
        """Return as many of the levels, from the lowest bit on, as shares of these numbers have bits for."""
        return replace(self, bits=min(self.bits, numbers.bits - numbers.f_x - numbers.f_theta - self.step))

    @property
    def size(self) -> float:
        """The distance of one level from the next."""
        return float(2.0**self.step)

    @property
    def reach(self) -> float:
        """The largest sum that has a level of its own, on either side."""
        return float(2.0 ** (self.bits - 1 + self.step))

    @property
    def max_reported(self) -> float:
        """The largest sum that is told, on either side."""
        return min(COVERED_FRACTION * self.reach, MOVED_FRACTION * self.reach - 1.5 * self.size)

    def overflow_shifts(self, knots: Floats) -> Words:
        """Return by how many levels, modulo 2^bits, a sum is moved that falls to each entry of a table."""
        moved = np.where(np.abs(knots) < self.max_reported, 0.0, np.rint((self.reach - knots) / self.size))
        return ShareRing(self.bits).of(moved.astype(np.int64))

    def mark_overflow(self, sums: Floats) -> Floats:
        """Return sums that were read from levels (any shape), infinite where they are beyond what is told."""
        return np.where(np.abs(sums) > self.max_reported, np.inf, sums)

    def can_clip(self, numbers: FixedPointEncoding) -> bool:
        """Whether the highest bits say finely enough which sums are near the end of the levels."""
        return bool(2.0 ** (numbers.integer_bits - numbers.top_bits) <= self.reach / 8)

    def clip_shifts(self, knots: Floats) -> Words:
        """Return by how many levels, modulo 2^bits, a sum is moved so that one beyond the levels is at their end."""
        moved = np.where(
            np.abs(knots) <= CLIP_FRACTION * self.reach,
            0.0,
            np.rint((np.copysign(CLIPPED_FRACTION * self.reach, knots) - knots) / self.size),
        )
        return ShareRing(self.bits).of(moved.astype(np.int64))

    @classmethod
    def exact(cls, numbers: FixedPointEncoding) -> Quantizer:
        """Return the levels that keep sums to 16 fractional bits, as large as shares hold them."""
        return cls(-_FRACTION, numbers.bits - numbers.f_x - numbers.f_theta + _FRACTION)

    def shift(self, numbers: FixedPointEncoding) -> int:
        """How many bits of a share are below s."""
        return numbers.f_x + numbers.f_theta + self.step

    def truncate(self, numbers: FixedPointEncoding, h: Words) -> Words:
        """Cut out the bits of a share h (any shape) that say which level, as words below 2^bits."""
        return (h >> np.uint64(self.shift(numbers))) & np.uint64(2**self.bits - 1)

    def dequantize(self, total: Words, *, rounded_down: int = 2) -> Floats:
        """Return the sums (any shape) that two cut shares, added up, stand for in the mean.

        rounded_down: how many of the two were cut without a dither below s.
        """
        signed = ShareRing(self.bits).signed(total & np.uint64(2**self.bits - 1))
        return (signed.astype(np.float64) + rounded_down / 2) * self.size
