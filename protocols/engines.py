"""Engines: the encryption schemes that a job can name, and the base class of protocols that use one.

An engine is an encryption scheme ("paillier" or "ckks") with its parameters and the code that computes it. Protocols
use an engine in two ways: to add encrypted vectors of several parties, and to compute a party's gradient J^T [[g]] from
the encrypted residual [[g]] and the derivatives J of the party's outputs by its parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, SerializeAsAny

from securevfl.base.config import NamedOption, Registry
from securevfl.crypto.kernel.gradient import KernelGradient
from securevfl.crypto.lattice.lattice_gradient import LatticeGradient
from securevfl.crypto.lattice.lattice_sum import LatticeSum
from securevfl.crypto.paillier.paillier_product import PaillierScheme
from securevfl.crypto.paillier.paillier_sum import PaillierSum
from securevfl.crypto.scheme import AdditiveScheme, LinearScheme
from securevfl.protocols.message_protocol import MessageProtocol
from securevfl.protocols.party_context import PartyContext

Library = Literal["own", "seal"]  # which code computes the CKKS scheme: this package's, or Microsoft SEAL


class Engine(NamedOption, ABC):
    """An encryption scheme with its parameters.

    Attributes:
        assumption: the cryptographic assumption that makes the scheme secure.
        exact: whether the same computation always decrypts to the same numbers, without random noise.
        pooled: whether operations are slow enough to benefit from a pool of processes.
    """

    assumption: ClassVar[str]
    exact: ClassVar[bool] = False
    pooled: ClassVar[bool] = False

    @classmethod
    def variants(cls) -> dict[str, Self]:
        """Return an engine for each variant whose messages differ, in a dict by the variant's name in documents."""
        return {cls.name: cls()}

    @classmethod
    def libraries(cls) -> dict[str, Self]:
        """Return an engine for each library that can compute this scheme, in a dict by suffixes for names in tests."""
        return {"": cls()}

    @property
    def with_smallest_keys(self) -> Self:
        """The same engine with the smallest keys that are allowed, for tests."""
        return self

    @abstractmethod
    def scheme(self) -> LinearScheme:
        """Return the scheme for products J^T [[g]] of a party's Jacobian with the encrypted residual."""

    @abstractmethod
    def sums(self) -> AdditiveScheme:
        """Return the scheme that adds encrypted vectors of several parties."""


class Paillier(Engine):
    """The Paillier cryptosystem."""

    name: ClassVar[str] = "paillier"
    assumption: ClassVar[str] = "decisional composite residuosity"
    exact: ClassVar[bool] = True
    pooled: ClassVar[bool] = True
    bits: int = Field(default=3072, le=16_384)
    """Key length in bits: 3072 for 128-bit security; 2048 (112-bit security) only for comparison with papers."""

    def model_post_init(self, context: object) -> None:
        """Reject a key length that the scheme does not support."""
        self.scheme()

    @property
    def with_smallest_keys(self) -> Self:
        """The same engine with Paillier keys of 2048 bits, the smallest allowed."""
        return self.model_copy(update={"bits": 2048})

    def scheme(self) -> LinearScheme:
        """Return the scheme for products; see `Engine.scheme`."""
        return _paillier(self.bits)

    def sums(self) -> AdditiveScheme:
        """Return the scheme for encrypted sums."""
        return PaillierSum(bits=self.bits)


class Ckks(Engine):
    """The CKKS scheme, which computes approximately with encrypted real numbers, with 128-bit security.

    The decrypting party adds random noise ("dither") to decrypted values before it sends them, because the rounding
    error of CKKS alone would reveal its key.
    """

    name: ClassVar[str] = "ckks"
    assumption: ClassVar[str] = "RLWE, 128-bit standard"
    library: Library = "own"
    """The code that computes products: "own" is this package's arithmetic, which the tests compare with SEAL. "seal" is
    Microsoft SEAL through tenseal; it is slower, and for users who must use a widely reviewed library."""

    @classmethod
    def libraries(cls) -> dict[str, Self]:
        """Return an engine for each library that can compute this scheme, in a dict by suffixes for names in tests."""
        return {"": cls(), " on SEAL": cls(library="seal")}

    def scheme(self) -> LinearScheme:
        """Return the scheme for products; see `Engine.scheme`."""
        return _lattice(self.library)

    def sums(self) -> AdditiveScheme:
        """Return the scheme for encrypted sums."""
        return LatticeSum()


@lru_cache(maxsize=8)
def _paillier(bits: int) -> LinearScheme:
    return PaillierScheme(bits=bits)


@lru_cache(maxsize=2)
def _lattice(library: Library) -> LinearScheme:
    return LatticeGradient() if library == "seal" else KernelGradient()


ENGINES: Registry[Engine] = Registry("engine", Paillier, Ckks)
AnyEngine = Annotated[SerializeAsAny[Engine], BeforeValidator(ENGINES.read)]


class Encrypted(MessageProtocol):
    """Base class of protocols that exchange ciphertexts; the job names the engine."""

    engine: AnyEngine

    def linear(self, context: PartyContext) -> LinearScheme:
        """Return the engine's scheme for products J^T [[g]]; the party's meter measures the time of its calls."""
        return context.meter.linear(self.engine.scheme())

    @property
    def with_smallest_keys(self) -> Self:
        """The same protocol with the smallest keys that are allowed, for tests."""
        return self.model_copy(update={"engine": self.engine.with_smallest_keys})

    @property
    def encrypts(self) -> bool:
        """Whether the protocol computes on ciphertexts: always True."""
        return True

    @property
    def pooled(self) -> bool:
        """Whether the engine's operations are slow enough to benefit from a pool of processes."""
        return self.engine.pooled

    @property
    def strength(self) -> str:
        """The cryptographic assumption of the engine."""
        return self.engine.assumption
