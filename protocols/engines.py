"""The homomorphic engines a job can name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Annotated, ClassVar, Self

from pydantic import BeforeValidator, SerializeAsAny

from securevfl.config import Named, Registry
from securevfl.crypto.lattice import LatticeScheme
from securevfl.crypto.lattice_sum import LatticeSum
from securevfl.crypto.paillier import PaillierScheme
from securevfl.crypto.paillier_sum import PaillierSum
from securevfl.crypto.scheme import AdditiveScheme, LinearScheme


class Engine(Named, ABC):
    """Which encryption, at which strength."""

    assumption: ClassVar[str]  # what its ciphertexts rest on
    exact: ClassVar[bool] = False  # whether the same numbers come out each time
    pooled: ClassVar[bool] = False  # whether its calls take so long that a pool of processes gains

    @classmethod
    def variants(cls) -> dict[str, Self]:
        """One of each kind that others see differently, by the name that checks and documents give it."""
        return {cls.name: cls()}

    @property
    def quick(self) -> Self:
        """The same with the smallest keys that are allowed, for tests."""
        return self

    @abstractmethod
    def scheme(self) -> LinearScheme:
        """For J^T [[g]]."""

    @abstractmethod
    def sums(self) -> AdditiveScheme:
        """For sums under encryption."""


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
    def quick(self) -> Self:
        return self.model_copy(update={"bits": 2048})

    def scheme(self) -> LinearScheme:
        return _paillier(self.bits)

    def sums(self) -> AdditiveScheme:
        return PaillierSum(bits=self.bits)


class Ckks(Engine):
    """The ring of CKKS on SEAL, 128-bit; what is opened is dithered, so that its noise tells nothing of the key."""

    name: ClassVar[str] = "ckks"
    assumption: ClassVar[str] = "RLWE, 128-bit standard"

    def scheme(self) -> LinearScheme:
        return _ckks()

    def sums(self) -> AdditiveScheme:
        return LatticeSum()


@lru_cache(maxsize=8)
def _paillier(bits: int) -> LinearScheme:
    return PaillierScheme(bits=bits)


@lru_cache(maxsize=1)
def _ckks() -> LinearScheme:
    return LatticeScheme()


ENGINES: Registry[Engine] = Registry("engine", Paillier, Ckks)
AnyEngine = Annotated[SerializeAsAny[Engine], BeforeValidator(ENGINES.read)]
