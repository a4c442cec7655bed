"""The homomorphic engines a job can name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, SerializeAsAny

from securevfl.base.config import NamedOption, Registry
from securevfl.crypto.kernel.gradient import KernelGradient
from securevfl.crypto.lattice.lattice_gradient import LatticeGradient
from securevfl.crypto.lattice.lattice_sum import LatticeSum
from securevfl.crypto.paillier.paillier_product import PaillierScheme
from securevfl.crypto.paillier.paillier_sum import PaillierSum
from securevfl.crypto.scheme import AdditiveScheme, LinearScheme
from securevfl.protocols.message_protocol import MessageProtocol
from securevfl.protocols.party_context import PartyContext

Library = Literal["own", "seal"]  # whose code the same protocol runs on


class Engine(NamedOption, ABC):
    """An encryption scheme at one strength, as a run chooses it."""

    assumption: ClassVar[str]  # what its ciphertexts rest on
    exact: ClassVar[bool] = False  # whether the same numbers come out each time
    pooled: ClassVar[bool] = False  # whether its calls take so long that a pool of processes gains

    @classmethod
    def variants(cls) -> dict[str, Self]:
        """One of each kind that others see differently, by the name that checks and documents give it."""
        return {cls.name: cls()}

    @classmethod
    def libraries(cls) -> dict[str, Self]:
        """One on each library that it can run on, by what that adds to its name in checks."""
        return {"": cls()}

    @property
    def with_smallest_keys(self) -> Self:
        """The same with the smallest keys that are allowed, for tests."""
        return self

    @abstractmethod
    def scheme(self) -> LinearScheme:
        """Return the scheme for products J^T [[g]] of a party's Jacobian with the encrypted residual."""

    @abstractmethod
    def sums(self) -> AdditiveScheme:
        """Return the scheme for sums under encryption."""


class Paillier(Engine):
    """Paillier; 3072 bits are 128-bit security, 2048 (112-bit) is for comparison with papers, less is refused."""

    name: ClassVar[str] = "paillier"
    assumption: ClassVar[str] = "decisional composite residuosity"
    exact: ClassVar[bool] = True
    pooled: ClassVar[bool] = True
    bits: int = 3072
    """Length of the key: 3072 is 128-bit security, 2048 (112-bit) is for comparison with papers, less is refused."""

    def model_post_init(self, context: object) -> None:
        self.scheme()

    @property
    def with_smallest_keys(self) -> Self:
        return self.model_copy(update={"bits": 2048})

    def scheme(self) -> LinearScheme:
        return _paillier(self.bits)

    def sums(self) -> AdditiveScheme:
        return PaillierSum(bits=self.bits)


class Ckks(Engine):
    """The ring of CKKS, 128-bit; what is opened is dithered, so that its noise tells nothing of the key."""

    name: ClassVar[str] = "ckks"
    assumption: ClassVar[str] = "RLWE, 128-bit standard"
    library: Library = "own"
    """Whose code multiplies: "own" is this package's arithmetic in residues, which tests hold against SEAL; "seal" is
    SEAL through tenseal, slower, for those whose rules ask for a library that others have read."""

    @classmethod
    def libraries(cls) -> dict[str, Self]:
        return {"": cls(), " on SEAL": cls(library="seal")}

    def scheme(self) -> LinearScheme:
        return _lattice(self.library)

    def sums(self) -> AdditiveScheme:
        return LatticeSum()


@lru_cache(maxsize=8)
def _paillier(bits: int) -> LinearScheme:
    return PaillierScheme(bits=bits)


@lru_cache(maxsize=2)
def _lattice(library: Library) -> LinearScheme:
    return LatticeGradient() if library == "seal" else KernelGradient()


ENGINES: Registry[Engine] = Registry("engine", Paillier, Ckks)
AnyEngine = Annotated[SerializeAsAny[Engine], BeforeValidator(ENGINES.read)]


# What all message protocols have in common that work on ciphertexts of an engine which the job names.


class Encrypted(MessageProtocol):
    """Its keys and calls are those of `engine`."""

    engine: AnyEngine

    def linear(self, context: PartyContext) -> LinearScheme:
        """Return the engine's scheme for J^T [[g]], its calls booked at this party."""
        return context.meter.linear(self.engine.scheme())

    @property
    def with_smallest_keys(self) -> Self:
        return self.model_copy(update={"engine": self.engine.with_smallest_keys})

    @property
    def encrypts(self) -> bool:
        return True

    @property
    def pooled(self) -> bool:
        return self.engine.pooled

    @property
    def strength(self) -> str:
        return self.engine.assumption
