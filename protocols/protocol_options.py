"""The options of a job that select its message protocols.

A training either sums the forward outputs of all parties with a sum protocol and sends residuals back with a residual
protocol, or it replaces both by secret shares. Forward outputs are the contributions of one party's model part to the
outputs of the model. A residual is the derivative of each row's loss by these outputs. An engine is an encryption
scheme with its parameters. The contributors of a sum are the parties whose outputs are added.
"""

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

# A new sum or residual protocol must be added here, so that a job can select it by its name.
SUMS: Registry[SumProtocol] = Registry("sum", DirectSum, TreeSum, PairwiseSum, CipherSum)
RESIDUALS: Registry[ResidualProtocol] = Registry("residual", OpenResidual, SealedResidual)


def default_sum(contributors: int) -> SumProtocol:
    """Return the protocol of `sum = "auto"`: pairwise masks, or a direct sum if there is one contributor."""
    return DirectSum() if contributors < 2 else PairwiseSum()


class Protocol(Config):
    """The message protocols of a job.

    Any sum protocol can be combined with any residual protocol. Secret shares replace both.

    Args:
        sum: "auto", the name of a sum protocol, or a sum object.
        residual: "open", an engine (Ckks(), Paillier(bits=3072)) or its name; omit it for an optimizer without
            residuals.
        shares: a Shares object, or a table of its keys.
        precision: "single" sends outputs and residuals with 4 bytes a number instead of 8.
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
    """How forward outputs are added: "auto" is "direct" for two parties and "pairwise" for more."""
    residual: SerializeAsAny[ResidualProtocol] | None = None
    """How residuals are sent: "open" (in the clear), or encrypted by the engine named here. FDSKL sends none."""
    shares: Shares | None = None
    """Secret sharing in place of a sum and a residual protocol, so that weights, sums and residuals stay shared. A
    `Shares` object, or a table of its keys.
    """
    precision: Literal["double", "single"] = "double"
    """Size of forward outputs and open residuals in messages: 8 bytes a number ("double") or 4 ("single"). Numbers in
    the clear are floating point. Masked numbers are fixed point up to 4,096; with "single" their resolution is 2^-17
    for three parties and 2^-14 for seventeen. Encrypted numbers have the precision of their engine."""

    @classmethod
    def read(cls, value: Any) -> Any:
        """Read a protocol from an object, a table of keys, or a word: "shares", "open" or the name of an engine."""
        if isinstance(value, str):
            value = {"shares": {}} if value == Shares.name else {"residual": value}
        return read_nested(cls, value)

    @model_validator(mode="before")
    @classmethod
    def _reject_stored(cls, keys: Any) -> Any:
        if isinstance(keys, Mapping) and "stored" in keys:
            raise ValueError('"stored" is a key of FDML; write optimizer = {name = "fdml", stored = ...}')
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
            value = {key: option for key, option in value.items() if key != "name"}
        return read_nested(Shares, value)

    @model_validator(mode="after")
    def _check_shares(self) -> Protocol:
        if self.shares is not None and (self.sum != "auto" or self.residual is not None):
            raise ValueError("shares replace sum and residual; leave these out")
        return self

    @property
    def reals(self) -> Reals:
        """The number format of forward outputs and open residuals."""
        return Reals(bits=64 if self.precision == "double" else 32)

    @property
    def family(self) -> str | None:
        """The protocol family (kind of training) that these options require; None if the optimizer decides."""
        return None if self.shares is None else self.shares.name

    def sum_for(self, contributors: int) -> SumProtocol:
        """Return the sum protocol for this number of contributors, with "auto" resolved."""
        return default_sum(contributors) if self.sum == "auto" else self.sum

    @property
    def seals(self) -> bool:
        """Whether residuals are sent encrypted, so that passive parties cannot read them."""
        return self.residual is not None and self.residual.seals

    @property
    def pooled(self) -> bool:
        """Whether the cryptographic operations are slow enough to benefit from a pool of processes."""
        return self.shares is not None or (self.residual is not None and self.residual.pooled)

    def label(self, contributors: int) -> str:
        """Return the name of this combination in cost tables: "shares", or sum/residual as in "pairwise/open"."""
        if self.shares is not None:
            return self.shares.name
        return f"{self.sum_for(contributors).name}/{'none' if self.residual is None else self.residual.label}"
