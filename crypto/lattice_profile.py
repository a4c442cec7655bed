"""What both sides of the lattice engine agree on: sizes, fixed-point scale, headers of messages.

Both primes are kept to the end: q has 93 bits. To divide a third prime out before the reply, as rescaling does, would
shrink value and noise alike (36 + 36 + 20 bits, 20 divided out) and cost half as many transforms again.

How far openings are from noise-free ones. An opened value is w + D with the low `drop` bits cut off, D the sum of
three secret integers uniform below M = 2^k, less its mean; the noise e moves it to w + e + D. Take squared Hellinger
distances, H^2 = 1 - sum sqrt(P Q). A density moved by e is within I e^2 / 8 of itself, I its Fisher information, since
its square root moves by at most e times the norm of its derivative; for three uniform summands I = 4.563 / M^2. Given
all noises of a run, the openings are drawn one after the other, each within .571 e^2 / M^2 whatever came before it and
however its mask was chosen. So their squared distances add up, and so do their means over the noises, whose variance
is at most `noise`^2. With total variation <= sqrt(2) H, a run that opens R values is within

    sqrt(2 R .571) noise / M

of one whose openings are made from J^T g and the mask alone. (J must not follow the noise; ciphertexts are RLWE's
affair.) One uniform summand, of the same error, would cost 2 bits more here, and R in place of sqrt(R) with masks that
aim at its edges.

The last character of a message's magic is the version of its format.
"""

from __future__ import annotations

import functools
import hashlib
import math
import struct
from dataclasses import dataclass
from typing import Any

from securevfl.crypto import sealio
from securevfl.crypto.lattice_layout import Layout
from securevfl.crypto.lattice_ring import NOISE_STD, Ring
from securevfl.errors import CryptoError, KeyMismatch, RangeError

PUBLIC = struct.Struct("<4s")
SEALED = struct.Struct("<4s16sIIIId")  # magic, key, n, c, s, p, bound
BLINDED = struct.Struct("<4s16sIIIII")  # magic, key, n, c, s, p, d
OPENED = struct.Struct("<4s16sI")  # magic, key, count

FISHER = 0.571  # an eighth of the Fisher information of three uniform summands, rounded up


@dataclass(frozen=True)
class Profile:
    """Sizes that go together.

    `bits` are the primes, special prime last; `k` bits has each of the three summands of the dither, `drop` bits are
    cut off after it; `T` bounds the norm of an encoded column block.
    """

    bits: tuple[int, ...]
    k: int
    drop: int
    T: float

    def noise(self, degree: int) -> float:
        """Standard deviation of the noise in a reply, at most: products, then rounding by the special prime."""
        rounding = (1 + 2 * degree / 3) / 12
        return math.sqrt((NOISE_STD * self.T) ** 2 + 2 * rounding)

    def distance_bits(self, degree: int, values: int) -> float:
        """-log2 of the statistical distance of a run that opens so many values to one without noise, at least."""
        return self.k - math.log2(self.noise(degree) * math.sqrt(2 * FISHER * values))


PROFILE = Profile((47, 46, 16), 72, 68, 2.0**21)
OPENINGS = 2**18  # values that a run may open within 2^-40 of noise-free ones


class Parameters:
    """A profile's ring and the numbers that follow from both."""

    def __init__(self, profile: Profile = PROFILE, degree: int = 4096) -> None:
        self.profile = profile
        self.ring = Ring(degree, profile.bits)
        self.modulus = math.prod(self.ring.primes)
        self.levels = self.modulus / 2.0**profile.drop  # distinct values of an opened number
        self.sealed_size = sealio.packed_size(self.ring.primes, degree) + sealio.SEED_BYTES

    def __reduce__(self) -> tuple[Any, ...]:
        return shared, (self.profile, self.ring.degree)

    def column_cap(self, layout: Layout) -> float:
        """L: the greatest sum of |x| over an encoded column."""
        return self.profile.T * math.sqrt(layout.n / layout.columns)

    def g_scale(self, layout: Layout, bound: float) -> float:
        """Integers per unit of g: depends on public numbers alone."""
        scale: float = 0.49 * self.modulus / self.column_cap(layout) / bound
        if not math.isfinite(scale):
            raise RangeError("lattice: the bound on g is too small for a fixed-point scale; scale g up")
        return scale

    def layout(self, n: int, c: int, s: int, p: int) -> Layout:
        """The layout a peer names. CryptoError if there is no such one."""
        degree = self.ring.degree
        if not (
            1 <= s <= n and 1 <= p <= c and p <= degree and s <= degree // p and (-(-n // s)) * (-(-c // p)) < 2**32
        ):
            raise CryptoError(
                f"lattice: a peer names a layout that does not exist (n={n}, c={c}, s={s}, p={p}, N={degree})"
            )
        return Layout(degree, n, c, s, p)

    @staticmethod
    def header(shape: struct.Struct, magic: bytes, message: bytes, fingerprint: bytes) -> tuple[Any, ...]:
        """The fields after magic and key, once these are what they should be."""
        kind = magic.decode()
        if len(message) < shape.size or message[:4] != magic:
            raise CryptoError(f"lattice: expected a {kind} message, got {len(message)} bytes of something else")
        fields = shape.unpack_from(message)
        if fields[1] != fingerprint:
            raise KeyMismatch(f"lattice: {kind} message belongs to another key; exchange public keys again")
        return fields[2:]


@functools.lru_cache(maxsize=4)
def shared(profile: Profile, degree: int) -> Parameters:
    """This process's own of these parameters, where they came from another one."""
    return Parameters(profile, degree)


def sized(message: bytes, expected: int, kind: str) -> None:
    """CryptoError unless the message has the expected number of bytes."""
    if len(message) != expected:
        raise CryptoError(f"lattice: {kind} message has {len(message)} bytes, expected {expected}; it was altered")


def fingerprint(public: bytes) -> bytes:
    """What names a key in every message: 16 bytes of SHA-256 of its public bytes."""
    return hashlib.sha256(public).digest()[:16]
