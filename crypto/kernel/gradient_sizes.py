"""What both sides of the gradient on the kernel agree on: primes, scales, limits, and the layouts that there are.

q is the product of four primes of 24 bits, of 96 bits in all: three more than SEAL's, so that opened values are as much
finer. The dither has the same size, and what it hides is the same noise e J of standard deviation sqrt(10.5) T at most,
and that of an encryption of zero, which no special prime divides away: some 240, beside 2^22.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

from securevfl.crypto.kernel.residues import DEGREE, Primes
from securevfl.crypto.lattice.polynomial_ring import NOISE_STD
from securevfl.crypto.lattice.profile import FixedPoint, Profile

__all__ = ["ENGINE", "MOST_MODULUS", "PIECE", "PROFILE", "SECONDS", "GradientParameters"]

ENGINE = "gradient on the kernel"  # in errors
MOST_MODULUS = 109  # bits of q: HomomorphicEncryption.org (2018), table 1, N = 4096, 128 bits, ternary secret
PIECE = 16  # sample blocks that are sealed together, and in a message where g goes in several
SECONDS = "public second polynomials of a sealed residual"  # whoever has the seed in it expands them


@dataclass(frozen=True)
class KernelProfile(Profile):
    """A profile whose modulus has no special prime."""

    def noise(self, degree: int) -> float:
        """Return the standard deviation of the noise in a reply, at most: products, then the encryption of zero."""
        return math.hypot(NOISE_STD * self.T, NOISE_STD * math.sqrt(1 + 2 * degree * 2 / 3))


PROFILE = KernelProfile((24, 24, 24, 24), 72, 68, 2.0**21)


class GradientParameters(FixedPoint):
    """A profile's primes and the numbers that follow from both."""

    def __init__(self, profile: Profile = PROFILE) -> None:
        self.primes = Primes(profile.bits[0], len(profile.bits))
        super().__init__(profile, self.primes.q)
        assert math.log2(self.primes.q) <= MOST_MODULUS, "more than the standard allows"

    def __reduce__(self) -> tuple[Any, ...]:
        return shared, (self.profile,)

    def distance_bits(self, values: int) -> float:
        """-log2 of the statistical distance of a run that opens so many values to one without noise, at least."""
        return self.profile.distance_bits(DEGREE, values)


@functools.lru_cache(maxsize=4)
def shared(profile: Profile) -> GradientParameters:
    """Return this process's own copy of these parameters when they came from another process."""
    return GradientParameters(profile)
