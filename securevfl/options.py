"""What a job says, as its method reads it: the options that all parties agree on before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, SerializeAsAny, ValidationInfo, field_validator, model_validator

from securevfl.base.config import Config, read_nested
from securevfl.data.preparation import Preparation
from securevfl.data.register import Register
from securevfl.data.schedule import BatchSize, Schedule
from securevfl.models import MODELS
from securevfl.models.base import Model
from securevfl.models.class_labels import class_name
from securevfl.models.exposure import OffsetLoss
from securevfl.models.log_link_losses import LogLinkLoss
from securevfl.models.loss import Loss
from securevfl.models.row_weights import WeightedLoss, Weights
from securevfl.optim import OPTIMIZERS
from securevfl.optim.defaults import fill_defaults
from securevfl.optim.optimizer import Training
from securevfl.protocols.protocol_options import Protocol


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
    """The least gain of the metric that counts."""


NESTED_TABLES: dict[str, type[Config]] = {
    "prepare": Preparation,
    "patience": Patience,
    "weights": Weights,
    "target": Target,
}


class JobOptions(Config):
    """All that a job says (`securevfl.job.Job` adds its method, its file and its digest)."""

    model: SerializeAsAny[Model]
    """What is fitted."""
    optimizer: SerializeAsAny[Training] = Field(default=None, validate_default=True)
    """The schedule of exchanges and local steps. Unless told, linear models go over all rows: on shares by
    block_descent, by rounds by block_newton."""
    protocol: Protocol = Field(default=None, validate_default=True)
    """How messages hide what they carry: "shares", which opens nothing and is chosen where the model allows it, "ckks"
    or "paillier", which seal residuals, "open", or a table of these keys."""
    batch_size: BatchSize = 256
    """Rows a batch, or "all" for one batch of all training rows; "growing", for block_descent, is "all" below 100,000
    training rows, and from there on visits go to parts of them that grow. The partition is fixed by the ids of the
    table."""
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
    positive: str | None = None
    """The class, of two, that probabilities and metrics are of, by its label. Without it 1, true or yes against 0, -1,
    false or no, and else the rarer one."""
    exposure: str | None = None
    """A column of the party with labels: over how much time, or how many units, a count or an amount was counted. No
    model sees it; predictions are for one unit of it."""
    scale: Literal["standard", "robust", "none"] = "standard"
    """Each party scales its own columns by its own training rows: by mean and deviation, or by median and quartiles."""
    reshuffle: bool = False
    """Draws new batches every epoch. Under a sealed residual that adds equations about labels, and must be accepted."""
    max_label_auc: float | None = Field(default=None, gt=0.5, lt=1)
    """Refuses the job where labels could be ranked above this AUC from what its gradients add up to."""
    reason_codes: int = Field(default=0, ge=0, le=100)
    """How many codes of a row that is scored a party may tell the one that asks: its columns that cost the row most,
    under names of its own ([reasons](scorecard.md#reasons-and-export)). Whether it does
    its owner says at scoring; none may if 0."""
    accepts: tuple[str, ...] = ()
    """The [leaks](#leaks) that all parties agree to, by name; what is not listed is refused."""

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, given: Any) -> Any:
        """Fill in what is left out of the options, as the model chooses (`securevfl.optim.defaults`)."""
        return fill_defaults(given) if isinstance(given, Mapping) else given

    @field_validator("batch_size", mode="plain")
    @classmethod
    def _read_batch_size(cls, value: Any) -> BatchSize:
        if value in ("all", "growing"):
            return "all" if value == "all" else "growing"
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
        raise ValueError(
            'should be a whole number of at least 1, "all" for one batch of all training rows, or "growing"'
        )

    @field_validator("positive", mode="before")
    @classmethod
    def _read_positive(cls, value: Any) -> Any:
        return value if value is None else class_name(value)

    @field_validator("model", mode="before")
    @classmethod
    def _read_model(cls, value: Any) -> Any:
        return MODELS.read(value)

    @field_validator("optimizer", mode="before")
    @classmethod
    def _read_optimizer(cls, value: Any) -> Any:
        return _there(OPTIMIZERS.read(value))

    @field_validator("protocol", mode="before")
    @classmethod
    def _read_protocol(cls, value: Any) -> Any:
        return _there(Protocol.read(value))

    @field_validator("prepare", "patience", "weights", "target", mode="before")
    @classmethod
    def _read_table(cls, value: Any, info: ValidationInfo) -> Any:
        return read_nested(NESTED_TABLES[str(info.field_name)], value)

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
    def scaling(self) -> str:
        """How columns are scaled before the model has them: as `scale` says, or not at all."""
        return self.scale if self.model.scales else "none"

    @property
    def loss(self) -> Loss:
        """What is minimised: the model's loss, of rows that count, and were exposed, as the job says."""
        loss = self.model.loss
        if self.exposure is not None:
            assert isinstance(loss, LogLinkLoss), "a job is refused whose loss takes no exposure"
            loss = OffsetLoss(loss)
        return loss if self.weights is None else WeightedLoss(loss, self.weights.limit)

    @property
    def residual_bound(self) -> float:
        """|g| of one entry never exceeds it."""
        return self.model.residual_bound * (1.0 if self.weights is None else self.weights.limit)

    @property
    def equations_change(self) -> bool:
        """Whether what a passive party opens are other equations in every local step: its Jacobian moves with the
        weights, or it weighs rows anew."""
        return not self.model.static_jacobian or self.optimizer.weighs_instances

    @property
    def equations(self) -> int:
        """How often in a run each parameter of a passive party gives a new equation about the residuals of a batch.

        A Jacobian that stays gives the same ones every epoch unless rows are reshuffled; one that moves with the
        weights, or whose rows are weighed anew, gives others in every local step that has an opening of its own.
        """
        if self.equations_change:
            return self.epochs * self.model.openings(self.optimizer.steps)
        return self.epochs if self.reshuffle else 1

    @property
    def evaluation_interval(self) -> int:
        """Rounds between joint evaluations while training; 0 for none."""
        return self.evaluate_every or (1 if self.stops_early else 0)

    @property
    def stops_early(self) -> bool:
        """Whether the leading party tells the others after each evaluation to go on or stop."""
        return self.target is not None or self.patience is not None

    @property
    def decision_interval(self) -> int:
        """Rounds between evaluations after which the leading party tells the others how to go on; 0 where it does
        not."""
        return self.evaluation_interval if self.stops_early or self.optimizer.may_overshoot else 0


def _there(value: Any) -> Any:
    """Return the value that was given or filled in. Raises ValueError if there is none, as some models have no choice
    that fits most."""
    if value is None:
        raise ValueError("is missing; add it")
    return value
