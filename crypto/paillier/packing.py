"""Packing: the positions of several numbers inside one large Paillier plaintext, an integer modulo n.

A key holder encrypts its residuals g, one number for each of n rows, and an evaluator multiplies them by the columns of
its matrix J. All numbers are integers. A plaintext is divided into slots, L bits apart. A ciphertext of g contains K
rows of g ("samples"): the plaintext is the sum of g_k * 2^(k * L) for k < K. The evaluator raises it to the power sum
of X_k * 2^((K - 1 - k) * L), with the integers X_k of a column. The result contains sum of g_k * X_k, the target, in
slot K - 1, and cross terms g_k * X_k', with k not equal to k', in the other 2 K - 2 slots. Packing saves encryptions,
which are slow, and costs some squarings. The results of P columns share a plaintext that the evaluator sends back, each
K slots above the previous one. Targets then overlap with nothing, and cross terms overlap only with cross terms.

The evaluator must not receive the cross terms, which are equations about g. The plaintext that the holder decrypts is
v = m + r mod n, with the result m and the evaluator's uniform mask r. The holder returns only the slots of v with
targets, the *windows*. The evaluator knows r and computes target = slot(v) - slot(r). This is wrong, and may reveal
something about the cross terms, only if

- a carry reaches the window from below. Below each slot there is a gap of 60 bits, so the probability is 2^-60 for each
  decrypted value;
- the sum wraps around n. There are 64 free bits at the top, so the probability is 2^-64 for each plaintext.

So a run that decrypts R values differs from one that decrypts targets alone by a statistical distance of at most the
sum of these probabilities (`distance_bits`): 2^-41.9 for R = 2^18. r is uniform modulo n, and therefore v is too,
whatever m is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt, log2

from securevfl.crypto.paillier.fixed_point_integers import Ints, column_bits
from securevfl.errors import ConfigError

GAP_BITS = 60
"""Number of unused bits below each slot."""
HEADROOM_BITS = 64
"""Number of unused bits at the top of a plaintext."""
MAX_SAMPLES = 1 << 24
"""Largest number of rows of a batch."""


@dataclass(frozen=True)
class PackedLayout:
    """How many bits and rows the slots of a plaintext have; both parties compute this from public numbers.

    Attributes:
        modulus_bits: number of bits of the Paillier modulus.
        n: number of rows ("samples") of g.
        samples: the number K of rows in one ciphertext of g.
    """

    modulus_bits: int
    n: int
    samples: int

    @property
    def column_bits(self) -> int:
        """Number of bits of the entries of J as integers."""
        return column_bits(self.n)

    @property
    def residual_bits(self) -> int:
        """Number of bits of the entries of g as integers.

        They have six bits more than the entries of J. So the error of J's rounding dominates, even if the agreed upper
        bound of |g| is much larger than the actual entries of g.
        """
        return self.column_bits + 6

    @property
    def width(self) -> int:
        """Number of bits of a slot: enough for the sign and a sum of 2 * n products, as cross terms may overlap."""
        return self.residual_bits + self.column_bits + (self.n - 1).bit_length() + 2

    @property
    def pitch(self) -> int:
        """The distance L from slot to slot, in bits."""
        return self.width + GAP_BITS

    @property
    def slots(self) -> int:
        """Number of slots in a plaintext."""
        return (self.modulus_bits - HEADROOM_BITS) // self.pitch

    @property
    def columns(self) -> int:
        """The number P of columns of J whose results share a plaintext."""
        return (self.slots - (2 * self.samples - 1)) // self.samples + 1

    @property
    def sealed_count(self) -> int:
        """Number of ciphertexts that encrypt one column of g."""
        return -(-self.n // self.samples)

    def opened_count(self, d: int) -> int:
        """Return the number of ciphertexts that the evaluator sends back for one column of g and d columns of J."""
        return -(-d // self.columns)

    def share(self, d: int) -> int:
        """Return the number of columns of J whose results share one of the `opened_count` ciphertexts."""
        return -(-d // self.opened_count(d))

    def target(self, column: int, d: int) -> int:
        """Return the position of the lowest bit of a column's result in its plaintext."""
        return (self.samples * (column % self.share(d)) + self.samples - 1) * self.pitch

    @property
    def offset(self) -> int:
        """The number that adds half of a slot's range to every slot of a plaintext, so that no slot is negative."""
        return sum(1 << (slot * self.pitch + self.width - 1) for slot in range(self.slots))


def distance_bits(values: int) -> float:
    """Return -log2 of the statistical distance between decrypting `values` windows and revealing only their targets."""
    return -log2(values * (2.0**-GAP_BITS + 2.0**-HEADROOM_BITS))


@lru_cache(maxsize=256)
def choose_packing(modulus_bits: int, n: int) -> PackedLayout:
    """Choose the layout for n rows that is estimated to be fastest.

    p and q are the two primes of the key's modulus. The unit of the cost model is the time of one product modulo the
    squared modulus, computed by GMP. A product modulo p^2 costs 0.42 units, and an encryption takes modulus_bits / 8
    such products. A decryption raises numbers to two powers, modulo p^2 and q^2, whose exponents have half as many bits
    as the modulus. Before it, the ciphertext is re-randomised by one power modulo the squared modulus, whose exponent
    has as many bits as the modulus. One more row in a ciphertext saves encryptions and costs squarings and decryptions.
    The holder does not know the number of columns of J; the model uses the square root of the number of rows instead.

    Args:
        modulus_bits: number of bits of the modulus.
        n: number of rows of g.

    Returns:
        The layout of the slots.

    Raises:
        ConfigError: if n is out of range.
    """
    if not 1 <= n <= MAX_SAMPLES:
        raise ConfigError(
            f"a batch of {n} rows cannot be encrypted with Paillier",
            f"use 1 to {MAX_SAMPLES} rows",
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
    """Yield plaintexts that contain `per` signed integers each, `pitch` bits apart; the last one may contain fewer."""
    numbers = [int(v) for v in values]
    for start in range(0, len(numbers), per):
        plaintext = 0
        for v in reversed(numbers[start : start + per]):
            plaintext = (plaintext << pitch) + v
        yield plaintext


def unpack(plaintext: int, count: int, pitch: int) -> list[int]:
    """Return the `count` signed integers in a plaintext of `pack`, each in [-2^(pitch-1), 2^(pitch-1))."""
    half = 1 << (pitch - 1)
    shifted = plaintext + sum(half << (k * pitch) for k in range(count))
    return [((shifted >> (k * pitch)) & (2 * half - 1)) - half for k in range(count)]
