"""Sizes, headers and the interface of an engine for products with the rows of J."""

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

SEALED_HEADER = struct.Struct("<4s16sIIIId")  # magic, key, n, c, r, s, bound

BLINDED_HEADER = struct.Struct("<4s16sIIIII")  # magic, key, n, c, r, s, d

OPENED_HEADER = struct.Struct("<4s16sII")  # magic, key, values of J^T g, and of checks

FISHER_FACTOR = 0.571  # an eighth of the Fisher information of three uniform summands, rounded up

MAX_RUN_OPENINGS = 2**18  # values that a run may open within 2^-40 of noise-free ones


@dataclass(frozen=True)
class Profile:
    """Sizes of a scheme that are chosen to go together.

    `bits` are the primes; `k` bits has each of the three summands of the dither, `drop` bits are cut off after it; `T`
    bounds the norm of an encoded column block, `zero` the standard deviation of the noise of an encryption of zero.
    """

    bits: tuple[int, ...]
    k: int
    drop: int
    T: float
    zero: float

    @property
    def noise(self) -> float:
        """The standard deviation of the noise in a reply, at most: products, then the encryption of zero."""
        return math.hypot(NOISE_STD * self.T, self.zero)

    def distance_bits(self, values: int) -> float:
        """-log2 of the statistical distance of a run that opens so many values to one without noise, at least."""
        return self.k - math.log2(self.noise * math.sqrt(2 * FISHER_FACTOR * values))


class RowParameters(ABC):
    """A profile, the numbers that follow from it, and how an engine reads and multiplies ciphertexts.

    Plaintexts are arrays whose last axes are sample blocks and column blocks, queries arrays whose last is the former.
    """

    engine: ClassVar[str]  # in errors
    magic: ClassVar[tuple[bytes, bytes, bytes, bytes]]  # of keys, what is sealed, blinded and opened
    key_size: int  # bytes of the first polynomial of a public key
    key_bits: int  # of the largest modulus of a key

    def __init__(self, profile: Profile, modulus: int) -> None:
        self.profile = profile
        self.modulus = modulus
        self.levels = modulus / 2.0**profile.drop  # distinct values of an opened number

    def __reduce__(self) -> tuple[Any, ...]:
        return _shared, (type(self), self.profile)

    @abstractmethod
    def choose(self, n: int, c: int, d: int, openings: int) -> RingLayout:
        """Return the cheapest layout for g of n x c when d columns are multiplied and so many products asked."""

    @abstractmethod
    def sealed_size(self, layout: RingLayout, width: int, blocks: int) -> int:
        """Return the bytes of so many sample blocks of so many outputs, sealed together."""

    @abstractmethod
    def answer_size(self, layout: RingLayout, d: int) -> int:
        """Return the bytes of a blinded product of d columns behind its header."""

    @abstractmethod
    def query(self, layout: RingLayout, width: int, sealed: bytes, blocks: int, F: int) -> NDArray[Any]:
        """Read what `sealed_size` measures, for products with F column blocks."""

    @abstractmethod
    def room(self, layout: RingLayout, blocks: int, F: int) -> tuple[NDArray[Any], int]:
        """Return an array for the plaintexts of so many blocks, and the bytes that they will take."""

    @abstractmethod
    def plaintexts(self, layout: RingLayout, plain: Floats) -> NDArray[Any]:
        """Turn integers in coefficients (M, blocks, F) into plaintexts."""

    @abstractmethod
    def sums(self, layout: RingLayout) -> Any:
        """Begin sums of products, by output block."""


@functools.lru_cache(maxsize=4)
def _shared(kind: Any, profile: Profile) -> RowParameters:
    """Return this process's own copy of these parameters when they came from another process."""
    parameters: RowParameters = kind(profile)
    return parameters
