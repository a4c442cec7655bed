"""What a job says, as its method reads it: the options that all parties agree on before anything runs."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SerializeAsAny, field_validator

from securevfl.config import Config, read_nested
from securevfl.data.register import Register
from securevfl.data.schedule import BatchSize, Schedule
from securevfl.models import MODELS
from securevfl.models.base import Model
from securevfl.optim import OPTIMIZERS
from securevfl.optim.base import Training
from securevfl.protocols.choice import Protocol

LeakName = Literal["rank", "fresh_equations", "single_passive", "label_auc", "columns", "sequential"]


class Target(Config):
    """Stop as soon as `metric` on the held-out rows (or, without any, the training rows) reaches `value`."""

    metric: str
    value: float


class JobOptions(Config):
    """All that a job says (`securevfl.job.Job` adds its method, its file and its digest).

    batch_size, epochs: rows a batch, or "all" for one batch of all training rows; passes over the fixed partition.
    seed: shared by all parties; orders the visits to batches and starts the weights, and does not change the batches
    (`securevfl.data.schedule`).
    test_fraction: share of rows held out from training, on which metrics are taken; 0 takes them on the training rows.
    evaluate_every: rounds between joint evaluations; 0 evaluates at the end only (with a target: every round).
    scale: "standard" lets each party scale its own columns by its own training rows.
    reshuffle, max_label_auc, accepts: see `securevfl.privacy.leaks`.
    """

    model: SerializeAsAny[Model]
    optimizer: SerializeAsAny[Training]
    protocol: Protocol
    batch_size: BatchSize = 256
    epochs: int = Field(default=10, ge=1)
    seed: int = Field(default=0, ge=0)
    test_fraction: float = Field(default=0.0, ge=0, lt=1)
    evaluate_every: int = Field(default=0, ge=0)
    target: Target | None = None
    scale: Literal["standard", "none"] = "standard"
    reshuffle: bool = False
    max_label_auc: float | None = Field(default=None, gt=0.5, lt=1)
    accepts: tuple[LeakName, ...] = ()

    @field_validator("batch_size", mode="plain")
    @classmethod
    def _read_batch_size(cls, value: Any) -> BatchSize:
        if value == "all":
            return "all"
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
        raise ValueError('should be a valid integer of at least 1, or "all" for one batch of all training rows')

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

    @property
    def evaluation_interval(self) -> int:
        """Rounds between joint evaluations while training; 0 for none."""
        return self.evaluate_every or (1 if self.target is not None else 0)
