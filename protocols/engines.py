"""The encryption schemes that a job can name, and the base class of protocols that use one."""

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

Library = Literal["own", "seal"]  # which code computes the same protocol


class Engine(NamedOption, ABC):
    """An encryption scheme with its parameters.

    Attributes:
        assumption: the cryptographic assumption.
        exact: whether decrypted results are always the same numbers.
        pooled: whether operations are slow enough to benefit from a pool of processes.
    """

    assumption: ClassVar[str]
    exact: ClassVar[bool] = False
    pooled: ClassVar[bool] = False

    @classmethod
    def variants(cls) -> dict[str, Self]:
        """Return one engine of each variant that peers can distinguish, by its name in checks and documents."""
        return {cls.name: cls()}

    @classmethod
    def libraries(cls) -> dict[str, Self]:
        """Return one engine for each library, by the suffix of its name in checks."""
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
        """Return the scheme for encrypted sums."""


class Paillier(Engine):
    """The Paillier cryptosystem."""

    name: ClassVar[str] = "paillier"
    assumption: ClassVar[str] = "decisional composite residuosity"
    exact: ClassVar[bool] = True
    pooled: ClassVar[bool] = True
    bits: int = Field(default=3072, le=16_384)
    """Key length in bits: 3072 for 128-bit security; 2048 (112-bit security) only for comparison with papers."""

    def model_post_init(self, context: object) -> None:
        """Check the key length."""
        self.scheme()

    @property
    def with_smallest_keys(self) -> Self:
        """The same engine with keys of 2048 bits."""
        return self.model_copy(update={"bits": 2048})

    def scheme(self) -> LinearScheme:
        """Return the scheme for products; see `Engine.scheme`."""
        return _paillier(self.bits)

    def sums(self) -> AdditiveScheme:
        """Return the scheme for encrypted sums."""
        return PaillierSum(bits=self.bits)


class Ckks(Engine):
    """The CKKS scheme with 128-bit security.

    Decrypted values are dithered, so that their noise reveals nothing about the key.
    """

    name: ClassVar[str] = "ckks"
    assumption: ClassVar[str] = "RLWE, 128-bit standard"
    library: Library = "own"
    """The code that computes products: "own" is this package's arithmetic, which the tests compare with SEAL. "seal" is
    Microsoft SEAL through tenseal; it is slower, and for users who must use a widely reviewed library."""

    @classmethod
    def libraries(cls) -> dict[str, Self]:
        """Return one engine for each library, by the suffix of its name in checks."""
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
    """Base class of message protocols that work on ciphertexts of an engine that the job names."""

    engine: AnyEngine

    def linear(self, context: PartyContext) -> LinearScheme:
        """Return the engine's scheme for J^T [[g]]; the party's meter measures its calls."""
        return context.meter.linear(self.engine.scheme())

    @property
    def with_smallest_keys(self) -> Self:
        """The same protocol with the smallest keys that are allowed, for tests."""
        return self.model_copy(update={"engine": self.engine.with_smallest_keys})

    @property
    def encrypts(self) -> bool:
        """True: the protocol works on ciphertexts."""
        return True

    @property
    def pooled(self) -> bool:
        """Whether the engine's operations are slow enough to benefit from a pool of processes."""
        return self.engine.pooled

    @property
    def strength(self) -> str:
        """The cryptographic assumption of the engine."""
        return self.engine.assumption
