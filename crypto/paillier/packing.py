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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt, log2

from securevfl.crypto.paillier.fixed_point import Ints, column_bits
from securevfl.errors import ConfigError

GAP_BITS = 60
HEADROOM_BITS = 64
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
        return self.width + GAP_BITS

    @property
    def slots(self) -> int:
        """The number of slots that a plaintext has."""
        return (self.modulus_bits - HEADROOM_BITS) // self.pitch

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
    return -log2(values * (2.0**-GAP_BITS + 2.0**-HEADROOM_BITS))


@lru_cache(maxsize=256)
def choose_packing(modulus_bits: int, n: int) -> PackedLayout:
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
