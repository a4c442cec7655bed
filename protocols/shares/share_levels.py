"""Levels of shared sums: which of 2^k steps a sum is at, read from the top of its shares. What outputs are made of.

A level takes the k bits of a share from s = 2^step on, so that of h_A + h_B = H the two cut shares say H / s, each
rounded down. As the fraction of a share is uniform, their sum and one is H / s rounded up or down at random, without
bias. A carry out of the highest bit vanishes: sums that are not within 2^(k - 1) s wrap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.crypto.share_ring import ShareRing, Words
from securevfl.protocols.shares.share_numbers import Numbers

__all__ = ["Levels"]

_FRACTION = 16  # bits of an exact sum below one


@dataclass(frozen=True)
class Levels:
    """The 2^bits levels, each 2^step apart, to which sums are rounded before they are told."""

    step: int
    bits: int

    @classmethod
    def over(cls, numbers: Numbers, step: float, reach: float) -> Levels:
        """Levels `step` apart (a power of two) over sums up to `reach` on either side, as far as shares have bits."""
        log = int(np.log2(step))
        most = numbers.bits - numbers.f_x - numbers.f_theta - log
        return cls(log, min(most, 1 + int(np.ceil(np.log2(reach))) - log))

    @property
    def size(self) -> float:
        """The distance of one level from the next."""
        return float(2.0**self.step)

    @property
    def reach(self) -> float:
        """The largest sum that has a level of its own, on either side."""
        return float(2.0 ** (self.bits - 1 + self.step))

    @classmethod
    def exact(cls, numbers: Numbers) -> Levels:
        """Return the levels that keep sums to 16 fractional bits, as large as shares hold them."""
        return cls(-_FRACTION, numbers.bits - numbers.f_x - numbers.f_theta + _FRACTION)

    def shift(self, numbers: Numbers) -> int:
        """How many bits of a share are below s."""
        return numbers.f_x + numbers.f_theta + self.step

    def cut(self, numbers: Numbers, h: Words) -> Words:
        """Cut out the bits of a share h (any shape) that say which level, as words below 2^bits."""
        return (h >> np.uint64(self.shift(numbers))) & np.uint64(2**self.bits - 1)

    def sums(self, total: Words, *, rounded_down: int = 2) -> Floats:
        """Return the sums (any shape) that two cut shares, added up, stand for in the mean.

        rounded_down: how many of the two were cut without a dither below s.
        """
        signed = ShareRing(self.bits).signed(total & np.uint64(2**self.bits - 1))
        return (signed.astype(np.float64) + rounded_down / 2) * self.size
