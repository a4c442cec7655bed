"""Parameters of encrypted products J^T g: sizes, message headers, and the interface of an implementation.

The key holder encrypts g (n, c), the evaluator multiplies by J (n, d), and the holder decrypts masked products
(row_products.py). A message begins with four letters; the last one is the version of its format. q is the modulus of
ciphertexts. A layout (ring_layout.py) divides rows into blocks ("sample blocks") of s rows, outputs (columns of g) into
blocks of r, and columns of J into F blocks. A block of J is encoded as a polynomial with M coefficients. A decrypted
value w contains noise e from the encryption, which would reveal something about the secret key. The holder therefore
adds a random dither D, the sum of three integers that are uniform below 2^k, minus its mean, and removes the lowest
`drop` bits.

The noise changes the value before rounding from w + D to w + e + D. How much can this reveal? Let H be the Hellinger
distance of two distributions P and Q, H^2 = 1 - sum of sqrt(P * Q). A density that is moved by e has a distance of H^2
<= I * e^2 / 8 from the original, because its square root moves by at most e times the norm of its derivative; I is its
Fisher information. For the sum of three uniform numbers, I = 4.563 / 4^k. So one decrypted value has H^2 <= 0.571 * e^2
/ 4^k, whatever values were decrypted before and whatever mask was chosen. The squared distances of all values of a run
add up, and the variance of the noise is at most `noise`^2. The statistical distance is at most sqrt(2) * H. A run that
decrypts R values therefore has a statistical distance of at most

    sqrt(2 * R * 0.571) * noise / 2^k

from a run whose values are computed from J^T g and the mask alone. J must not depend on the noise. A dither of only one
uniform number with the same error would need 2 more bits, and its bound would grow with R instead of sqrt(R).


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
"""Header of an encrypted g: four letters, fingerprint of the key, n, c, r, s, and the bound on g."""
BLINDED_HEADER = struct.Struct("<4s16sIIIII")
"""Header of a blinded product: four letters, fingerprint of the key, n, c, r, s, d."""
OPENED_HEADER = struct.Struct("<4s16sII")
"""Header of decrypted values: four letters, fingerprint of the key, number of values of J^T g, number of checks."""

FISHER_FACTOR = 0.571
"""One eighth of the Fisher information of the sum of three uniform numbers below 1, rounded up."""
MAX_RUN_OPENINGS = 2**18
"""The number of values that a run may decrypt with a statistical distance of at most 2^-40 from noise-free ones."""


@dataclass(frozen=True)
class Profile:
    """Sizes of a scheme that are chosen together, so that its noise stays hidden.

    Attributes:
        bits: number of bits of each prime of q.
        k: number of bits of each of the three random numbers in a dither.
        drop: number of lowest bits that are removed after the dither is added.
        T: bound on the Euclidean norm of an encoded block of columns.
        zero: standard deviation of the noise of an encryption of zero.
    """

    bits: tuple[int, ...]
    k: int
    drop: int
    T: float
    zero: float

    @property
    def noise(self) -> float:
        """Upper bound on the standard deviation of the noise in a decrypted value."""
        return math.hypot(NOISE_STD * self.T, self.zero)

    def distance_bits(self, values: int) -> float:
        """Return -log2 of the largest statistical distance that noise causes in a run that decrypts `values` values."""
        return self.k - math.log2(self.noise * math.sqrt(2 * FISHER_FACTOR * values))


class RowParameters(ABC):
    """Parameters of a scheme, the sizes that follow from them, and an implementation's operations on ciphertexts.

    Args:
        profile: the sizes of the scheme.
        modulus: the modulus q.

    Attributes:
        engine: name of the implementation in error messages.
        magic: the letters at the beginning of public keys, and of messages with encrypted, blinded and decrypted
            values.
        key_size: number of bytes of the first polynomial of a public key.
        key_bits: number of bits of the largest modulus of a key.
        levels: number of different decrypted values, q / 2^drop.
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
        """Return the number of bytes of `blocks` encrypted sample blocks with `width` outputs."""

    @abstractmethod
    def answer_size(self, layout: RingLayout, d: int) -> int:
        """Return the number of bytes of a blinded product with d columns of J, without its header."""

    @abstractmethod
    def query(self, layout: RingLayout, width: int, sealed: bytes, blocks: int, F: int) -> NDArray[Any]:
        """Read encrypted sample blocks, in the form that `sums` multiplies; the last axis is the sample blocks.

        Args:
            layout: the division of matrices into blocks (`ring_layout.py`).
            width: number of outputs in the ciphertexts.
            sealed: the bytes of the ciphertexts.
            blocks: number of sample blocks.
            F: number of column blocks that they will be multiplied with.

        Returns:
            The ciphertexts.
        """

    @abstractmethod
    def room(self, layout: RingLayout, blocks: int, F: int) -> tuple[NDArray[Any], int]:
        """Return an array to be filled with results of `plaintexts` for these blocks, and its size in bytes."""

    @abstractmethod
    def plaintexts(self, layout: RingLayout, plain: Floats) -> NDArray[Any]:
        """Convert coefficients (M, blocks, F) to the form that `sums` multiplies; the last axes are blocks and F."""

    @abstractmethod
    def sums(self, layout: RingLayout) -> Any:
        """Return an object that adds up encrypted products for each block of outputs; it is empty at first."""


@functools.lru_cache(maxsize=4)
def _restored(kind: Any, profile: Profile) -> RowParameters:
    """Return parameters that another process has pickled, from this process's cache if possible."""
    parameters: RowParameters = kind(profile)
    return parameters
