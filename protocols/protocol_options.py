"""What a job says of its message protocols: how sums go up and how residuals go down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import SerializeAsAny, field_validator, model_validator

from securevfl.base.config import Config, Registry, read_nested
from securevfl.protocols.engines import ENGINES, Engine
from securevfl.protocols.number_spaces import Reals
from securevfl.protocols.residuals.base import ResidualProtocol
from securevfl.protocols.residuals.open_residual import OpenResidual
from securevfl.protocols.residuals.sealed_residual import SealedResidual
from securevfl.protocols.shares.shares_options import Shares
from securevfl.protocols.sums.base import SumProtocol
from securevfl.protocols.sums.cipher_sum import CipherSum
from securevfl.protocols.sums.direct_sum import DirectSum
from securevfl.protocols.sums.pairwise_sum import PairwiseSum
from securevfl.protocols.sums.tree_sum import TreeSum

# The sums and residuals that a job can name. Adding one is one line here.


SUMS: Registry[SumProtocol] = Registry("sum", DirectSum, TreeSum, PairwiseSum, CipherSum)
RESIDUALS: Registry[ResidualProtocol] = Registry("residual", OpenResidual, SealedResidual)


def default_sum(contributors: int) -> SumProtocol:
    """Return what `sum = "auto"` stands for: direct for one contributor, whom no sum can hide, pairwise from two on."""
    return DirectSum() if contributors < 2 else PairwiseSum()


class Protocol(Config):
    """How sums go up and how residuals go down, any of the one with any of the other; or shares, in place of both.

    `sum` is "auto", a name or a sum object; `residual` is "open", an engine (Ckks(), Paillier(bits=3072)) or its name,
    and is left out for an optimizer that sends nothing down. `shares` is a Shares object or a table of its keys.
    `precision` "single" carries outputs and residuals in 4 bytes a number in place of 8.
    """

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            sum: SumProtocol | str | Mapping[str, Any] = ...,
            residual: ResidualProtocol | Engine | str | Mapping[str, Any] | None = ...,
            shares: Shares | Mapping[str, Any] | None = ...,
            precision: Literal["double", "single"] = ...,
        ) -> None: ...

    sum: SerializeAsAny[SumProtocol] | Literal["auto"] = "auto"
    """How forward outputs are summed up; "auto" is direct for two parties and pairwise for more."""
    residual: SerializeAsAny[ResidualProtocol] | None = None
    """How residuals go down: "open", or the name of an engine, which seals them; none for FDSKL."""
    shares: Shares | None = None
    """Weights, sums and residuals stay shared, in place of a sum and a residual; a table of the keys of Shares."""
    precision: Literal["double", "single"] = "double"
    """Forward outputs and open residuals take 8 bytes a number, or 4: floating point in the clear; under masks fixed
    point up to 4,096, in steps of 2^-17 for three parties and 2^-14 for seventeen. What is encrypted stays as its
    engine has it."""

    @classmethod
    def read(cls, value: Any) -> Any:
        """Read a protocol from its object, a table of its keys, or a word: "shares", "open" or the name of an
        engine."""
        if isinstance(value, str):
            value = {"shares": {}} if value == Shares.name else {"residual": value}
        return read_nested(cls, value)

    @model_validator(mode="before")
    @classmethod
    def _name_new_place(cls, keys: Any) -> Any:
        if isinstance(keys, Mapping) and "stored" in keys:
            raise ValueError('stored is a key of FDML; write optimizer = {name = "fdml", stored = ...}')
        return keys

    @field_validator("sum", mode="before")
    @classmethod
    def _read_sum(cls, value: Any) -> Any:
        return value if value == "auto" else SUMS.read(value)

    @field_validator("residual", mode="before")
    @classmethod
    def _read_residual(cls, value: Any) -> Any:
        name = value.get("name") if isinstance(value, Mapping) else value
        if isinstance(name, str) and name in ENGINES:
            value = ENGINES.read(value)
        elif isinstance(name, str) and name not in RESIDUALS:
            raise ValueError(f'must be one of open, {", ".join(ENGINES)}; choose one of these, or protocol = "shares"')
        return SealedResidual(engine=value) if isinstance(value, Engine) else RESIDUALS.read(value)

    @field_validator("shares", mode="before")
    @classmethod
    def _read_shares(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            value = {key: each for key, each in value.items() if key != "name"}
        return read_nested(Shares, value)

    @model_validator(mode="after")
    def _check_shares(self) -> Protocol:
        if self.shares is not None and (self.sum != "auto" or self.residual is not None):
            raise ValueError("shares take the place of sum and residual; leave these out")
        return self

    @property
    def reals(self) -> Reals:
        """What forward outputs and open residuals are carried as."""
        return Reals(bits=64 if self.precision == "double" else 32)

    @property
    def family(self) -> str | None:
        """The family of training that it makes a job one of, whatever its optimizer; None if the optimizer says."""
        return None if self.shares is None else self.shares.name

    def sum_for(self, contributors: int) -> SumProtocol:
        """Return the sum protocol in force over so many contributors; what "auto" stands for."""
        return default_sum(contributors) if self.sum == "auto" else self.sum

    @property
    def seals(self) -> bool:
        """Whether a residual goes down and passive parties are kept from seeing it."""
        return self.residual is not None and self.residual.seals

    @property
    def pooled(self) -> bool:
        """Whether its calls take so long that a pool of processes gains."""
        return self.shares is not None or (self.residual is not None and self.residual.pooled)

    def label(self, contributors: int) -> str:
        """Its name in a cost table over so many contributors, as sum/residual."""
        if self.shares is not None:
            return self.shares.name
        return f"{self.sum_for(contributors).name}/{'none' if self.residual is None else self.residual.label}"
