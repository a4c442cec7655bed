"""Positions of the numbers inside a Paillier plaintext.

A ciphertext of g contains K samples, sum_k g_k 2^(kL). Raised to sum_k X_k 2^((K-1-k)L), it contains sum_k g_k X_k in
slot K - 1 and cross terms g_k X_k' in the other 2K - 2 slots. Packing saves encryptions, which are expensive, and costs
some squarings. P columns share an outgoing plaintext, each K slots above the previous one: the targets do not overlap
with anything, and cross terms overlap only with cross terms.

The cross terms are equations in g that the evaluator must not receive. The holder therefore returns only *windows*: the
target slots of the masked plaintext v = m + r mod n. Since the evaluator knows r, slot(v) - slot(r) is the target,
except after

- a carry into the window. A gap of 60 bits below each slot makes it, and everything it could reveal about the cross
  terms, an event of probability 2^-60 for each decrypted value;
- a wrap around n. With 64 free bits at the top, its probability is 2^-64 for each plaintext.

The statistical distance of a run that decrypts R values from one that decrypts targets alone is at most the sum of
these (`distance_bits`): 2^-41.9 for R = 2^18. r is uniform mod n, and therefore v is too, whatever m is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt, log2

from securevfl.crypto.paillier.fixed_point_integers import Ints, column_bits
from securevfl.errors import ConfigError

GAP_BITS = 60
"""Free bits below each slot."""
HEADROOM_BITS = 64
"""Free bits at the top of a plaintext."""
MAX_SAMPLES = 1 << 24
"""Largest number of samples in a batch."""


@dataclass(frozen=True)
class PackedLayout:
    """The slots for n samples, which both sides derive from public numbers.

    Attributes:
        modulus_bits: size of the modulus.
        n: number of samples.
        samples: the number K of samples in a ciphertext.
    """

    modulus_bits: int
    n: int
    samples: int

    @property
    def column_bits(self) -> int:
        """Bits of the encoded entries of J."""
        return column_bits(self.n)

    @property
    def residual_bits(self) -> int:
        """Bits of the encoded entries of g: six more, so that the rounding of J dominates even for a loose bound."""
        return self.column_bits + 6

    @property
    def width(self) -> int:
        """Bits of a slot for the sign and 2n products; cross terms of two neighbours may overlap, hence the 2."""
        return self.residual_bits + self.column_bits + (self.n - 1).bit_length() + 2

    @property
    def pitch(self) -> int:
        """The distance L in bits from slot to slot."""
        return self.width + GAP_BITS

    @property
    def slots(self) -> int:
        """Number of slots in a plaintext."""
        return (self.modulus_bits - HEADROOM_BITS) // self.pitch

    @property
    def columns(self) -> int:
        """The number P of columns of J in an outgoing plaintext."""
        return (self.slots - (2 * self.samples - 1)) // self.samples + 1

    @property
    def sealed_count(self) -> int:
        """Number of ciphertexts of one column of g."""
        return -(-self.n // self.samples)

    def opened_count(self, d: int) -> int:
        """Return the number of outgoing ciphertexts of one column of g, for d columns of J."""
        return -(-d // self.columns)

    def share(self, d: int) -> int:
        """Return the columns in each outgoing plaintext; d columns are divided evenly among workers."""
        return -(-d // self.opened_count(d))

    def target(self, column: int, d: int) -> int:
        """Return the first bit of a column's result in its outgoing plaintext."""
        return (self.samples * (column % self.share(d)) + self.samples - 1) * self.pitch

    @property
    def offset(self) -> int:
        """Half of the range of every slot; added, it makes all slots non-negative, so that none borrows."""
        return sum(1 << (slot * self.pitch + self.width - 1) for slot in range(self.slots))


def distance_bits(values: int) -> float:
    """Return -log2 of the largest distance of a run with `values` decrypted values from one with targets alone."""
    return -log2(values * (2.0**-GAP_BITS + 2.0**-HEADROOM_BITS))


@lru_cache(maxsize=256)
def choose_packing(modulus_bits: int, n: int) -> PackedLayout:
    """Choose the layout for n samples with a cost model.

    The unit is a product mod n^2 at GMP's speed. A product mod p^2 costs 0.42 units. An encryption takes |n|/8 of
    these. A decryption takes two powers of |n|/2 bits mod p^2 and q^2, and the re-randomisation before it one power of
    |n| bits mod n^2, whose squarings are faster. Another sample in a ciphertext saves encryptions and costs squarings
    and decryptions. The holder does not know d; the model uses sqrt(n) instead.

    Args:
        modulus_bits: size of the modulus.
        n: number of samples.

    Returns:
        The layout.

    Raises:
        ConfigError: if n is out of range.
    """
    if not 1 <= n <= MAX_SAMPLES:
        raise ConfigError(
            f"a batch of {n} samples cannot be encrypted with Paillier",
            f"use 1 to {MAX_SAMPLES} samples",
            code="SVFL-JOB-TOO-LARGE",
        )
    d = isqrt(n)
    encryption = 0.42 * modulus_bits / 8
    opening = 0.42 * 1.2 * modulus_bits + 1.1 * modulus_bits

    def cost(candidate: PackedLayout) -> float:
        squarings = d * candidate.samples * candidate.pitch
        return candidate.sealed_count * encryption + squarings + candidate.opened_count(d) * opening

    slots = PackedLayout(modulus_bits, n, 1).slots
    return min((PackedLayout(modulus_bits, n, K) for K in range(1, min(n, (slots + 1) // 2) + 1)), key=cost)


def pack(values: Sequence[int] | Ints, per: int, pitch: int) -> Iterator[int]:
    """Yield plaintexts sum_k v_k 2^(k*pitch) of `per` signed integers each; the last one may have fewer."""
    numbers = [int(v) for v in values]
    for start in range(0, len(numbers), per):
        plaintext = 0
        for v in reversed(numbers[start : start + per]):
            plaintext = (plaintext << pitch) + v
        yield plaintext


def unpack(plaintext: int, count: int, pitch: int) -> list[int]:
    """Return the `count` signed integers of a plaintext of `pack`, each within [-2^(pitch-1), 2^(pitch-1))."""
    half = 1 << (pitch - 1)
    shifted = plaintext + sum(half << (k * pitch) for k in range(count))
    return [((shifted >> (k * pitch)) & (2 * half - 1)) - half for k in range(count)]
