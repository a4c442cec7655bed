"""What both sides of the lattice engine agree on: sizes of a profile, fixed-point scale, headers of messages.

*strict* keeps both its primes to the end: q has 92 bits, k = 67, and an opened value has 25 bits. To divide a third
prime out before the reply, as rescaling does, would shrink value and noise alike (36 + 36 + 20 bits, 20 divided out,
k = 47: again 25 bits) and cost half as many transforms again. *lean* divides 38 bits out, which leaves the noise of
rounding alone, and replies with one prime of 54 bits.

The last character of a message's magic is the version of its format.
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass
from typing import Any

from securevfl.crypto import sealio
from securevfl.crypto.lattice_layout import Layout
from securevfl.crypto.lattice_ring import NOISE_STD, Ring
from securevfl.errors import CryptoError, KeyMismatch, RangeError

PUBLIC = struct.Struct("<4sB")
SEALED = struct.Struct("<4sB16sIIIId")  # magic, profile, key, n, c, s, p, bound
BLINDED = struct.Struct("<4sB16sIIIII")  # magic, profile, key, n, c, s, p, d
OPENED = struct.Struct("<4sB16sI")  # magic, profile, key, count


@dataclass(frozen=True)
class Profile:
    """Sizes that go together.

    `bits` are the primes, special prime last; `drop` of them are divided out before the reply; `k` bits are dropped
    after the dither; `T` bounds the norm of an encoded column block.
    """

    name: str
    tag: int
    bits: tuple[int, ...]
    drop: int
    k: int
    T: float
    assumption: str

    def noise(self, degree: int) -> float:
        """Standard deviation of the noise in a reply, at most: products, then rounding by the dropped primes."""
        dropped = 2.0 ** sum(self.bits[-1 - self.drop : -1])
        rounding = (1 + 2 * degree / 3) / 12
        return math.sqrt((NOISE_STD * self.T / dropped) ** 2 + 2 * rounding)

    def distance_bits(self, degree: int) -> float:
        """-log2 of the statistical distance, per opened value, to an opening without noise."""
        return self.k - math.log2(self.noise(degree) * math.sqrt(2 / math.pi))


PROFILES = {
    "strict": Profile("strict", 1, (46, 46, 17), 0, 67, 2.0**25, "RLWE; openings within 2^-40 of noise-free ones"),
    "lean": Profile("lean", 2, (54, 38, 17), 1, 24, 2.0**31, "RLWE and hint-LWE (openings dithered by 24 bits only)"),
}


class Parameters:
    """A profile's ring and the numbers that follow from both."""

    def __init__(self, profile: Profile, degree: int = 4096) -> None:
        self.profile = profile
        self.ring = Ring(degree, profile.bits)
        self.reply_level = self.ring.next_level() if profile.drop else self.ring.level
        kept = len(self.ring.primes) - profile.drop
        self.reply_primes = self.ring.primes[:kept]
        self.dropped = math.prod(self.ring.primes[kept:])
        self.levels_of_reply = math.prod(self.reply_primes) / 2.0**profile.k  # distinct values of an opened number
        self.sealed_size = sealio.packed_size(self.ring.primes, degree) + sealio.SEED_BYTES

    def column_cap(self, layout: Layout) -> float:
        """L: the greatest sum of |x| over an encoded column."""
        return self.profile.T * math.sqrt(layout.n / layout.columns)

    def g_scale(self, layout: Layout, bound: float) -> float:
        """Integers per unit of g: depends on public numbers alone."""
        scale: float = 0.45 * math.prod(self.ring.primes) / self.column_cap(layout) / bound
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

    def header(self, shape: struct.Struct, magic: bytes, message: bytes, fingerprint: bytes) -> tuple[Any, ...]:
        """The fields after magic, profile and key, once these are what they should be."""
        kind = magic.decode()
        if len(message) < shape.size or message[:4] != magic:
            raise CryptoError(f"lattice: expected a {kind} message, got {len(message)} bytes of something else")
        fields = shape.unpack_from(message)
        if fields[1] != self.profile.tag:
            raise CryptoError(
                f"lattice: {kind} message is not of profile {self.profile.name!r}; both sides need the same"
            )
        if fields[2] != fingerprint:
            raise KeyMismatch(f"lattice: {kind} message belongs to another key; exchange public keys again")
        return fields[3:]


def sized(message: bytes, expected: int, kind: str) -> None:
    """CryptoError unless the message has the expected number of bytes."""
    if len(message) != expected:
        raise CryptoError(f"lattice: {kind} message has {len(message)} bytes, expected {expected}; it was altered")


def fingerprint(public: bytes) -> bytes:
    """What names a key in every message: 16 bytes of SHA-256 of its public bytes."""
    return hashlib.sha256(public).digest()[:16]
