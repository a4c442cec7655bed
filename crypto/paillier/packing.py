"""Where the numbers sit inside a Paillier plaintext.

A ciphertext of g holds K samples, sum_k g_k 2^(kL). Raised to sum_k X_k 2^((K-1-k)L) it holds sum_k g_k X_k in slot
K-1 and cross terms g_k X_k' in the other 2K-2 slots. Packing saves the expensive part, encryptions, for some more
squarings. P columns share an outgoing plaintext, each K slots above the one before: targets stand alone, cross terms
overlap cross terms only.

The cross terms are equations in g that the evaluator must not get: the holder therefore returns *windows*, the
target slots alone, of the masked plaintext v = m + r mod n. With r known, slot(v) - slot(r) is the target, but for

- a carry into the window. A gap of 60 bits below each slot makes it, and so anything it could tell of the cross
  terms, an event of probability 2^-60 for each value opened;
- a wrap around n. With 64 bits free at the top its probability is 2^-64 for each plaintext.

A run that opens R values is within the sum of these of one that opens targets alone (`distance_bits`): 2^-41.9 for
R = 2^18. r is uniform mod n, so v is too, whatever m.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from math import isqrt, log2

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.errors import ConfigError, CryptoError, KeyMismatch, RangeError

# Reals as integers at one scale a vector, or one scale a column.
#
# What travels has a scale that depends on public numbers only (the vector's length and its agreed bound), so no
# exponent in the clear tells anything about the values, as floats with an exponent each would. The columns of J never
# travel: their scales are private to the evaluator and follow the data.


Ints = NDArray[np.int64]

_TINY = 1e-290  # a column whose largest entry is below this counts as zero: its scale would overflow


def check_bound(bound: float) -> float:
    """`bound` itself. RangeError unless it is finite and positive."""
    if not (math.isfinite(bound) and bound > 0):
        raise RangeError(f"a bound must be a finite number above 0, got {bound}; pass the loss's bound on |g|")
    return float(bound)


def encode(values: Floats, bound: float, bits: int) -> Ints:
    """round(values * 2^bits / bound), any shape; magnitudes are at most 2^bits.

    The error is at most bound * 2^-(bits+1) a value. RangeError if any value is not finite or |value| > bound.
    """
    check_bound(bound)
    v = np.asarray(values, dtype=np.float64)
    if not np.isfinite(v).all():
        raise RangeError("the vector to encrypt has entries that are not finite; pass numbers")
    if v.size and float(np.abs(v).max()) > bound:
        raise RangeError(f"the vector to encrypt has entries beyond the agreed bound {bound}; pass values within it")
    return np.rint(v / bound * 2.0**bits).astype(np.int64)


def decode(number: int, bound: float, bits: int) -> float:
    """Return the real that `encode` (or a sum of its outputs) stands for."""
    return float(number) / 2.0**bits * bound


def column_bits(n: int) -> int:
    """Bits of J's magnitude that keep the error of a sum over n samples independent of n.

    With b = log2(n) + 10 bits, rounding J moves X_j^T g by at most 2^-11 max|X_j| max|g|: 4.9e-4 at unit scale.
    """
    return max(16, (n - 1).bit_length() + 10)


def encode_columns(J: Floats, bits: int) -> tuple[Ints, Floats]:
    """J (n x d) as integers of at most `bits` bits, and each column's scale (d,): integers = J * scale.

    Columns of small multiples of one number (0/1 flags, counts) become those multiples, exactly. RangeError if J is
    not finite.
    """
    X = np.asarray(J, dtype=np.float64)
    if X.ndim != 2:
        raise RangeError(f"J must be a matrix (n x d), got {X.ndim} dimensions")
    if not np.isfinite(X).all():
        raise RangeError("J has entries that are not finite; impute or drop them")
    top = 2**bits - 1
    size = np.abs(X)
    largest = size.max(axis=0, initial=0.0)
    alive = largest > _TINY
    scales = np.where(alive, top / np.where(alive, largest, 1.0), 1.0)
    smallest = np.where(size > 0, size, np.inf).min(axis=0, initial=np.inf)
    unit = np.where(alive & (smallest > _TINY), smallest, 1.0)
    with np.errstate(over="ignore", invalid="ignore"):
        counts = np.rint(X / unit)
        exact = alive & (largest / unit <= top) & (counts * unit == X).all(axis=0)
    scales = np.where(exact, 1.0 / unit, scales)
    ints: Ints = np.where(exact, counts, np.rint(X * np.where(alive, scales, 0.0))).astype(np.int64)
    return ints, scales


GAP = 60
HEADROOM = 64
MAX_SAMPLES = 1 << 24


@dataclass(frozen=True)
class PackedLayout:
    """The slots for n samples under a modulus of `modulus_bits`. Both sides derive it from public numbers."""

    modulus_bits: int
    n: int
    samples: int  # K, samples in a ciphertext

    @property
    def column_bits(self) -> int:
        """The magnitude bits of the integers that J is encoded as."""
        return column_bits(self.n)

    @property
    def residual_bits(self) -> int:
        """Magnitude bits of g's integers: six more, so that J's rounding is what counts even for a loose bound."""
        return self.column_bits + 6

    @property
    def width(self) -> int:
        """Bits of a slot: 2n products of both, and the sign. The 2: cross terms of two neighbours may overlap."""
        return self.residual_bits + self.column_bits + (self.n - 1).bit_length() + 2

    @property
    def pitch(self) -> int:
        """L, bits from slot to slot."""
        return self.width + GAP

    @property
    def slots(self) -> int:
        """The number of slots that a plaintext has."""
        return (self.modulus_bits - HEADROOM) // self.pitch

    @property
    def columns(self) -> int:
        """P, columns of J that fit in an outgoing plaintext."""
        return (self.slots - (2 * self.samples - 1)) // self.samples + 1

    @property
    def sealed_count(self) -> int:
        """Ciphertexts of one column of g."""
        return -(-self.n // self.samples)

    def opened_count(self, d: int) -> int:
        """Outgoing ciphertexts of one column of g, for d columns of J."""
        return -(-d // self.columns)

    def share(self, d: int) -> int:
        """Columns in each outgoing plaintext: d dealt evenly, so that workers have equal loads."""
        return -(-d // self.opened_count(d))

    def target(self, column: int, d: int) -> int:
        """Bit at which the result of a column starts, in its outgoing plaintext."""
        return (self.samples * (column % self.share(d)) + self.samples - 1) * self.pitch

    @property
    def offset(self) -> int:
        """Half of every slot's range: added, it makes all slots non-negative, so that none borrows from the next."""
        return sum(1 << (slot * self.pitch + self.width - 1) for slot in range(self.slots))


def distance_bits(values: int) -> float:
    """-log2 of how far, at most, a run that opens so many values is from one that opens targets alone."""
    return -log2(values * (2.0**-GAP + 2.0**-HEADROOM))


@lru_cache(maxsize=256)
def layout(modulus_bits: int, n: int) -> PackedLayout:
    """Choose the layout for n samples: K by a cost model. ConfigError if n is out of range.

    Costs in products mod n^2 at GMP's speed: a product mod p^2 costs 0.42 of one, an encryption takes |n|/8 of those,
    an opening two powers of |n|/2 bits mod p^2 and q^2 and one of |n| bits mod n^2 to re-randomise, whose squarings GMP
    does in less. A sample more in a ciphertext saves encryptions and costs squarings and openings. The holder does not
    know d: sqrt(n) stands for it.
    """
    if not 1 <= n <= MAX_SAMPLES:
        raise ConfigError(f"a batch must have 1 to {MAX_SAMPLES} samples, got {n}")
    d = isqrt(n)
    encryption = 0.42 * modulus_bits / 8
    opening = 0.42 * 1.2 * modulus_bits + 1.1 * modulus_bits

    def cost(candidate: PackedLayout) -> float:
        squarings = d * candidate.samples * candidate.pitch
        return candidate.sealed_count * encryption + squarings + candidate.opened_count(d) * opening

    slots = PackedLayout(modulus_bits, n, 1).slots
    return min((PackedLayout(modulus_bits, n, K) for K in range(1, min(n, (slots + 1) // 2) + 1)), key=cost)


def pack(values: Sequence[int] | Ints, per: int, pitch: int) -> Iterator[int]:
    """Plaintexts sum_k v_k 2^(k*pitch) of `per` signed integers each; the last may hold fewer."""
    numbers = [int(v) for v in values]
    for start in range(0, len(numbers), per):
        plaintext = 0
        for v in reversed(numbers[start : start + per]):
            plaintext = (plaintext << pitch) + v
        yield plaintext


def unpack(plaintext: int, count: int, pitch: int) -> list[int]:
    """Return the `count` signed integers of a plaintext made by `pack`, each within [-2^(pitch-1), 2^(pitch-1))."""
    half = 1 << (pitch - 1)
    shifted = plaintext + sum(half << (k * pitch) for k in range(count))
    return [((shifted >> (k * pitch)) & (2 * half - 1)) - half for k in range(count)]


# How Paillier ciphertexts travel: a header that names kind, key and sizes, then fixed-width big-endian numbers.


_MAGIC = b"SVPC"
_VERSION = 1
_HEAD = struct.Struct(">4sBB16sIIIdI")


class MessageKind(IntEnum):
    """The kinds of content that a Paillier message can have."""

    SEALED = 1  # ciphertexts of g; sizes n, c, 0
    BLINDED = 2  # ciphertexts of the masked J^T g; sizes n, c, d
    OPENED = 3  # windows of its plaintexts; sizes n, c, d
    SUM = 4  # ciphertexts of a sum; sizes m, terms allowed, terms added


@dataclass(frozen=True)
class Header:
    """`sizes` mean what `MessageKind` says; `bound` is the agreed bound on a value."""

    kind: MessageKind
    fingerprint: bytes
    sizes: tuple[int, int, int]
    bound: float


def write(header: Header, numbers: Sequence[int], width: int) -> bytes:
    """Header, then each number in `width` bytes."""
    head = _HEAD.pack(_MAGIC, _VERSION, header.kind, header.fingerprint, *header.sizes, header.bound, len(numbers))
    return head + b"".join(int(x).to_bytes(width, "big") for x in numbers)


def written_size(count: int, width: int) -> int:
    """Return the bytes of what `write` writes of so many numbers."""
    return _HEAD.size + count * width


def read(data: bytes, kind: MessageKind, fingerprint: bytes) -> tuple[Header, bytes, int]:
    """Header, the numbers' bytes, and how many the header promises. KeyMismatch, or CryptoError if malformed."""
    if len(data) < _HEAD.size:
        raise CryptoError(f"expected Paillier {kind.name.lower()} bytes, got {len(data)} bytes; cut short?")
    magic, version, got, key, n, c, d, bound, count = _HEAD.unpack_from(data)
    if magic != _MAGIC or version != _VERSION:
        raise CryptoError(f"not Paillier bytes of version {_VERSION}; both sides must run the same release")
    if got != kind:
        raise CryptoError(f"expected Paillier {kind.name.lower()} bytes, got kind {got}; messages were mixed up")
    if key != fingerprint:
        raise KeyMismatch("the ciphertexts belong to another key; exchange public keys again")
    if not (math.isfinite(bound) and bound > 0) or n < 1 or c < 1:
        raise CryptoError("the header has an impossible size or bound; the bytes were altered")
    return Header(kind, key, (n, c, d), bound), data[_HEAD.size :], count


def numbers(body: bytes, promised: int, expected: int, width: int) -> list[int]:
    """Read `expected` numbers of `width` bytes. CryptoError if the header or the length say otherwise."""
    if promised != expected or len(body) != expected * width:
        raise CryptoError(
            f"expected {expected} numbers of {width} bytes, the header says {promised} and {len(body)} bytes came"
        )
    return [int.from_bytes(body[i : i + width], "big") for i in range(0, len(body), width)]
