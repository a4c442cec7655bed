"""A job: what all parties agree on before anything runs. Read from Python or from a TOML file."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, SerializeAsAny, field_validator, model_validator

from securevfl import metrics
from securevfl.config import Config, plain, read_nested
from securevfl.errors import ConfigError
from securevfl.leakage import LeakName
from securevfl.models import MODELS
from securevfl.models.base import Model
from securevfl.models.kernel import Kernel
from securevfl.optim import OPTIMIZERS
from securevfl.optim.base import Optimizer
from securevfl.party import Party
from securevfl.protocols.base import ResidualProtocol, SumProtocol
from securevfl.protocols.engines import ENGINES, Engine
from securevfl.protocols.no_residual import NoResidual
from securevfl.protocols.registry import RESIDUALS, SUMS, auto_sum
from securevfl.protocols.sealed_residual import SealedResidual
from securevfl.register import Register
from securevfl.schedule import Schedule

if TYPE_CHECKING:
    from securevfl.ledger import DisclosureLedger


class Protocol(Config):
    """How sums go up and how residuals go down; any of the one with any of the other.

    `sum` is "auto", a name or a sum object; `residual` is "open", an engine (Ckks(), Paillier(bits=3072)) or its name,
    and may be left out for an optimizer that sends nothing down.
    """

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            sum: SumProtocol | str | Mapping[str, Any] = ...,
            residual: ResidualProtocol | Engine | str | Mapping[str, Any] = ...,
        ) -> None: ...

    sum: SerializeAsAny[SumProtocol] | Literal["auto"] = "auto"
    residual: SerializeAsAny[ResidualProtocol] = Field(default_factory=NoResidual)

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
            raise ValueError(f"must be one of open, {', '.join(ENGINES)}; choose one of these")
        return SealedResidual(engine=value) if isinstance(value, Engine) else RESIDUALS.read(value)

    def sum_for(self, passives: int) -> SumProtocol:
        """The sum in force with so many passive parties; what "auto" stands for."""
        return auto_sum(passives) if self.sum == "auto" else self.sum

    def label(self, passives: int) -> str:
        """Its name in a cost table with so many passive parties, as sum/residual."""
        residual = self.residual
        down = residual.engine.name if isinstance(residual, SealedResidual) else residual.name
        return f"{self.sum_for(passives).name}/{down}"


class Target(Config):
    """Stop as soon as `metric` on the held-out rows (or, without any, the training rows) reaches `value`."""

    metric: str
    value: float


class Job(Config):
    """One training.

    batch_size, epochs: rows a batch, passes over the fixed partition. seed: shared by all parties; orders the visits to
    batches and starts the weights, and does not change the batches (`securevfl.schedule`).
    test_fraction: share of rows held out from training, on which metrics are taken; 0 takes them on the training rows.
    evaluate_every: rounds between joint evaluations; 0 evaluates at the end only (with a target: every round).
    scale: "standard" lets each party scale its own columns by its own training rows.
    reshuffle, max_label_auc, accepts: see `securevfl.leakage`.
    """

    model: SerializeAsAny[Model]
    optimizer: SerializeAsAny[Optimizer]
    protocol: Protocol
    batch_size: int = Field(default=256, ge=1)
    epochs: int = Field(default=10, ge=1)
    seed: int = Field(default=0, ge=0)
    test_fraction: float = Field(default=0.0, ge=0, lt=1)
    evaluate_every: int = Field(default=0, ge=0)
    target: Target | None = None
    scale: Literal["standard", "none"] = "standard"
    reshuffle: bool = False
    max_label_auc: float | None = Field(default=None, gt=0.5, lt=1)
    accepts: tuple[LeakName, ...] = ()

    @field_validator("model", mode="before")
    @classmethod
    def _read_model(cls, value: Any) -> Any:
        return MODELS.read(value)

    @field_validator("optimizer", mode="before")
    @classmethod
    def _read_optimizer(cls, value: Any) -> Any:
        return OPTIMIZERS.read(value)

    @field_validator("protocol", mode="before")
    @classmethod
    def _read_protocol(cls, value: Any) -> Any:
        return read_nested(Protocol, value)

    @field_validator("target", mode="before")
    @classmethod
    def _read_target(cls, value: Any) -> Any:
        return read_nested(Target, value)

    @model_validator(mode="after")
    def _check_target(self) -> Job:
        known = metrics.names(self.model.loss)
        if self.target is not None and self.target.metric not in known:
            raise ValueError(f"target.metric must be one of {', '.join(known)} for this model; choose one of these")
        return self

    @model_validator(mode="after")
    def _check_kinds(self) -> Job:
        kernel, silent = self.optimizer.trains_kernels, isinstance(self.protocol.residual, NoResidual)
        if kernel != isinstance(self.model, Kernel):
            fits = "kernel models only" if kernel else "no kernel model; use optimizer fdskl"
            raise ValueError(f"optimizer {self.optimizer.name} trains {fits}")
        if silent and not kernel:
            raise ValueError("protocol.residual: is missing; add it")
        if kernel and not silent:
            raise ValueError(f"optimizer {self.optimizer.name} sends no residual; leave protocol.residual out")
        if kernel and self.reshuffle:
            raise ValueError(f"optimizer {self.optimizer.name} keeps features by batch; set reshuffle = false")
        return self

    @property
    def evaluation_interval(self) -> int:
        """Rounds between joint evaluations while training; 0 for none."""
        return self.evaluate_every or (1 if self.target is not None else 0)

    def to_dict(self) -> dict[str, Any]:
        """The job as plain data; what a job file holds and what the digest covers."""
        return plain(self)

    @property
    def digest(self) -> bytes:
        """SHA-256 of the job; parties compare it before they start."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).digest()

    def schedule(self, rows: int | Register) -> Schedule:
        """Which rows of a table are held out and which make a batch: of a table without ids, or by its register."""
        return Schedule(
            rows,
            batch_size=self.batch_size,
            epochs=self.epochs,
            seed=self.seed,
            test_fraction=self.test_fraction,
            reshuffle=self.reshuffle,
        )

    def explain(
        self, parties: Sequence[Party] | None = None, *, ledgers: Mapping[str, DisclosureLedger] | None = None
    ) -> str:
        """What each party sends, receives and can infer, before anything runs. The consent sheet, as text.

        ledgers: of some of the parties, by name; what they told before counts.
        """
        from securevfl.explain import explain

        return explain(self, parties, ledgers=ledgers)

    @classmethod
    def from_dict(cls, keys: Mapping[str, Any]) -> Job:
        """The opposite of `to_dict`. ConfigError, one line a problem."""
        return cls(**keys)

    @classmethod
    def load(cls, path: str | Path) -> Job:
        """Reads a TOML file. ConfigError, one line a problem."""
        try:
            keys = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as cause:
            raise ConfigError(f"{path}: a job file was expected there ({cause.strerror}); check the path") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as cause:
            raise ConfigError(f"{path}: TOML was expected; {cause}; correct it") from None
        return cls.from_dict(keys)
