"""What a job says, as its method reads it: the options that all parties agree on before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, SerializeAsAny, field_validator, model_validator

from securevfl.config import Config, read_nested
from securevfl.data.preparation import Preparation
from securevfl.data.register import Register
from securevfl.data.schedule import BatchSize, Schedule
from securevfl.models import MODELS
from securevfl.models.base import Model
from securevfl.models.losses import Loss
from securevfl.models.weights import WeightedLoss, Weights
from securevfl.optim import OPTIMIZERS
from securevfl.optim.base import Training
from securevfl.optim.block_newton import BlockNewton
from securevfl.protocols.choice import Protocol

LeakName = Literal["rank", "fresh_equations", "single_passive", "label_auc", "columns", "sequential"]


class Target(Config):
    """Stop as soon as `metric` on the held-out rows (or, without any, the training rows) reaches `value`."""

    metric: str
    """What is measured: a metric of the model's [loss](#loss)."""
    value: float
    """Where training stops: at or above it, or below it for metrics that are errors or losses."""


class Patience(Config):
    """Stop when a metric on the held-out rows (or, without any, the training rows) has not got better for a while. The
    model is the best of those evaluated."""

    metric: str = "loss"
    """What is watched: a metric of the model's [loss](#loss)."""
    evaluations: int = Field(default=3, ge=1)
    """How many evaluations in a row may bring nothing."""
    tolerance: float = Field(default=1e-4, ge=0)
    """By how much the metric must get better to count."""


class JobOptions(Config):
    """All that a job says (`securevfl.job.Job` adds its method, its file and its digest)."""

    model: SerializeAsAny[Model]
    """What is fitted."""
    optimizer: SerializeAsAny[Training]
    """By which schedule of exchanges and local steps. Linear models go by block_newton on all rows unless told."""
    protocol: Protocol
    """How sums go up and residuals go down; a word alone says the residual."""
    batch_size: BatchSize = 256
    """Rows a batch, or "all" for one batch of all training rows. The partition is fixed by the ids of the table."""
    epochs: int = Field(default=10, ge=0)
    """Passes over all batches; 0 leaves it to the guards of all parties on one computer: the most, up to 10, that none
    refuses for what they tell of columns. A job without an optimizer leaves it to them."""
    seed: int = Field(default=0, ge=0)
    """Orders the visits to batches and starts the weights; shared by all parties. It does not change the batches."""
    test_fraction: float = Field(default=0.0, ge=0, lt=1)
    """Share of rows held out from training, on which metrics are taken; 0 takes them on the training rows."""
    split: int = Field(default=0, ge=0)
    """Which of the ways to hold so many rows out; `vfl.stratified` finds one that holds classes out evenly."""
    evaluate_every: int = Field(default=0, ge=0)
    """Rounds between joint evaluations; 0 is at the end only, or with a target or patience every round."""
    target: Target | None = None
    """Stops the training early, when a metric is good enough."""
    patience: Patience | None = None
    """Stops the training early, when a metric gets no better."""
    prepare: Preparation = Preparation()
    """What each party makes of missing values, texts and numbers in its own columns before they are scaled."""
    weights: Weights | None = None
    """How much rows and classes count; all the same without."""
    scale: Literal["standard", "robust", "none"] = "standard"
    """Each party scales its own columns by its own training rows: by mean and deviation, or by median and quartiles."""
    reshuffle: bool = False
    """Draws new batches every epoch. Under a sealed residual that adds equations about labels, and must be accepted."""
    max_label_auc: float | None = Field(default=None, gt=0.5, lt=1)
    """Refuses the job where labels could be ranked above this AUC from what its gradients add up to."""
    accepts: tuple[LeakName, ...] = ()
    """Leaks that all parties agree to; what is not listed is refused (see the [threat model](threat-model.md))."""

    @model_validator(mode="before")
    @classmethod
    def _without_optimizer(cls, given: Any) -> Any:
        """A linear model needs no optimizer to be chosen, and no step size: each party knows its columns' curvature."""
        if not isinstance(given, Mapping) or "optimizer" in given:
            return given
        try:
            model, protocol = MODELS.read(given.get("model")), _protocol(given.get("protocol"))
            BlockNewton().check(model)
        except (AttributeError, ValueError):
            return given  # the fields say what is wrong with them, and that there is no optimizer
        if not isinstance(protocol, Protocol) or protocol.method:
            return given
        return {"batch_size": "all", "epochs": 0} | dict(given) | {"optimizer": BlockNewton()}

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
        return _protocol(value)

    @field_validator("prepare", mode="before")
    @classmethod
    def _read_prepare(cls, value: Any) -> Any:
        return read_nested(Preparation, value)

    @field_validator("patience", mode="before")
    @classmethod
    def _read_patience(cls, value: Any) -> Any:
        return read_nested(Patience, value)

    @field_validator("weights", mode="before")
    @classmethod
    def _read_weights(cls, value: Any) -> Any:
        return read_nested(Weights, value)

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
            split=self.split,
        )

    @property
    def loss(self) -> Loss:
        """What is minimised: the model's loss, of rows that count as the job says."""
        return self.model.loss if self.weights is None else WeightedLoss(self.model.loss, self.weights.most)

    @property
    def residual_bound(self) -> float:
        """|g| of one entry never exceeds it."""
        return self.model.residual_bound * (1.0 if self.weights is None else self.weights.most)

    @property
    def moves(self) -> bool:
        """Whether what a passive party opens are other equations in every local step: its Jacobian moves with the
        weights, or it weighs rows anew."""
        return not self.model.static_jacobian or self.optimizer.reweighs

    @property
    def equations(self) -> int:
        """How often in a run each parameter of a passive party gives a new equation about the residuals of a batch.

        A Jacobian that stays gives the same ones every epoch unless rows are reshuffled; one that moves with the
        weights, or whose rows are weighed anew, gives others in every local step.
        """
        if self.moves:
            return self.epochs * self.optimizer.steps
        return self.epochs if self.reshuffle else 1

    @property
    def evaluation_interval(self) -> int:
        """Rounds between joint evaluations while training; 0 for none."""
        return self.evaluate_every or (1 if self.stops_early else 0)

    @property
    def stops_early(self) -> bool:
        """Whether the leading party tells the others after each evaluation to go on or stop."""
        return self.target is not None or self.patience is not None


def _protocol(value: Any) -> Any:
    """A protocol from its object, its table, or the word for its residual."""
    return read_nested(Protocol, {"residual": value} if isinstance(value, str) else value)
