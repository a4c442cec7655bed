"""Parameters of an engine for products with the rows of J: sizes, message headers, and the interface for ciphertexts.

*Distance of decrypted values from noise-free ones.* A decrypted value is w + D with the low `drop` bits removed. D is
the sum of three secret integers uniform below M = 2^k, minus its mean. The noise e changes it to w + e + D. Consider
squared Hellinger distances, H^2 = 1 - sum sqrt(P Q). A density moved by e has a squared distance of at most I e^2 / 8
from itself, where I is its Fisher information, because its square root moves by at most e times the norm of its
derivative. For three uniform summands, I = 4.563 / M^2.

Given all noises of a run, the decrypted values are drawn one after the other. Each has a squared distance of at most
.571 e^2 / M^2, for all earlier values and however its mask was chosen. Therefore the squared distances add up, and so
do their means over the noises, whose variance is at most `noise`^2. With total variation <= sqrt(2) H, a run that
decrypts R values has a distance of at most

    sqrt(2 R .571) noise / M

from a run whose values are computed from J^T g and the mask alone. (J must not depend on the noise; RLWE protects the
ciphertexts.) One uniform summand of the same error would cost 2 bits more, and R instead of sqrt(R) for masks that aim
at its edges.

The last character of a message's four letters is the version of its format.
"""

from __future__ import annotations

import functools
import math
import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel.ring_layout import RingLayout
from securevfl.crypto.kernel.ring_sampling import NOISE_STD

SEALED_HEADER = struct.Struct("<4s16sIIIId")
"""Of an encrypted g: letters, key, n, c, r, s, bound."""
BLINDED_HEADER = struct.Struct("<4s16sIIIII")
"""Of a blinded product: letters, key, n, c, r, s, d."""
OPENED_HEADER = struct.Struct("<4s16sII")
"""Of decrypted values: letters, key, numbers of values of J^T g and of checks."""

FISHER_FACTOR = 0.571
"""One eighth of the Fisher information of three uniform summands, rounded up."""
MAX_RUN_OPENINGS = 2**18
"""How many values a run may decrypt within 2^-40 of noise-free ones."""


@dataclass(frozen=True)
class Profile:
    """Sizes of a scheme that are chosen together.

    Attributes:
        bits: sizes of the primes.
        k: bits of each of the three summands of the dither.
        drop: how many low bits are removed after the dither is added.
        T: bound on the norm of an encoded column block.
        zero: standard deviation of the noise of an encryption of zero.
    """

    bits: tuple[int, ...]
    k: int
    drop: int
    T: float
    zero: float

    @property
    def noise(self) -> float:
        """Bound on the standard deviation of the noise in a reply: from products and the encryption of zero."""
        return math.hypot(NOISE_STD * self.T, self.zero)

    def distance_bits(self, values: int) -> float:
        """Return -log2 of the largest distance of a run that decrypts `values` values from one without noise."""
        return self.k - math.log2(self.noise * math.sqrt(2 * FISHER_FACTOR * values))


class RowParameters(ABC):
    """A profile, the numbers that follow from it, and how an engine reads and multiplies ciphertexts.

    The last axes of arrays of plaintexts are sample blocks and column blocks; the last axis of queries is sample
    blocks.

    Args:
        profile: the sizes.
        modulus: the modulus q.

    Attributes:
        engine: name of the engine in error messages.
        magic: letters of public keys and of encrypted, blinded and decrypted values.
        key_size: bytes of the first polynomial of a public key.
        key_bits: size of the largest modulus of a key.
        levels: number of different results, q / 2^drop.
    """

    engine: ClassVar[str]
    magic: ClassVar[tuple[bytes, bytes, bytes, bytes]]
    key_size: int
    key_bits: int

    def __init__(self, profile: Profile, modulus: int) -> None:
        self.profile = profile
        self.modulus = modulus
        self.levels = modulus / 2.0**profile.drop

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.profile)

    @abstractmethod
    def choose(self, n: int, c: int, d: int, openings: int) -> RingLayout:
        """Return the fastest layout for g (n, c), d columns of J and `openings` products with each g."""

    @abstractmethod
    def sealed_size(self, layout: RingLayout, width: int, blocks: int) -> int:
        """Return the bytes of `blocks` sample blocks of `width` outputs that are encrypted together."""

    @abstractmethod
    def answer_size(self, layout: RingLayout, d: int) -> int:
        """Return the bytes of a blinded product of d columns without its header."""

    @abstractmethod
    def query(self, layout: RingLayout, width: int, sealed: bytes, blocks: int, F: int) -> NDArray[Any]:
        """Read `blocks` encrypted sample blocks of `width` outputs, for products with F column blocks."""

    @abstractmethod
    def room(self, layout: RingLayout, blocks: int, F: int) -> tuple[NDArray[Any], int]:
        """Return an array for the plaintexts of sample and column blocks, and the bytes that they will need."""

    @abstractmethod
    def plaintexts(self, layout: RingLayout, plain: Floats) -> NDArray[Any]:
        """Convert integers in coefficients (M, blocks, F) to plaintexts."""

    @abstractmethod
    def sums(self, layout: RingLayout) -> Any:
        """Return empty sums of products by output block."""


@functools.lru_cache(maxsize=4)
def _restored(kind: Any, profile: Profile) -> RowParameters:
    """Return this process's cached copy of parameters that another process has pickled."""
    parameters: RowParameters = kind(profile)
    return parameters
