"""The options of a job, on which all parties agree before anything runs."""

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
from securevfl.untrusted import MAX_INTEGER

MAX_EPOCHS = 100_000
"""Largest number of epochs of a job."""
MAX_ITERATIONS = 10**9
"""Largest number of rounds or evaluations that an option may state."""
MAX_BATCH_ROWS = 2**31
"""Largest number of rows of a batch: that of a table."""


class Target(Config):
    """Stop as soon as `metric` on the held-out rows (or, without any, the training rows) reaches `value`."""

    metric: str
    """The metric: one of those of the model's [loss](#loss)."""
    value: float
    """Where training stops: at or above it, or below it for metrics that are errors or losses."""


class Patience(Config):
    """Stop when a metric on the held-out rows (or, without any, the training rows) has stopped improving.

    The result is the best model that was evaluated.
    """

    metric: str = "loss"
    """The metric: one of those of the model's [loss](#loss)."""
    evaluations: int = Field(default=3, ge=1, le=MAX_ITERATIONS)
    """Number of evaluations in a row without an improvement."""
    tolerance: float = Field(default=1e-4, ge=0, le=1e12)
    """The smallest change of the metric that counts as an improvement."""


NESTED_TABLES: dict[str, type[Config]] = {
    "prepare": Preparation,
    "patience": Patience,
    "weights": Weights,
    "target": Target,
}


class JobOptions(Config):
    """All options of a job (`securevfl.job.Job` adds its protocol family, its file and its digest)."""

    model: SerializeAsAny[Model]
    """The model."""
    optimizer: SerializeAsAny[Training] = Field(default=None, validate_default=True)
    """The schedule of exchanges and local steps. By default, linear models use all rows in each step: block_descent on
    shares, block_newton in rounds."""
    protocol: Protocol = Field(default=None, validate_default=True)
    """How messages are protected: "shares", which opens nothing and is the default if the model allows it, "ckks" or
    "paillier", which seal residuals, "open", or a table of these keys."""
    batch_size: BatchSize = 256
    """Rows per batch, or "all" for one batch of all training rows. "growing", for block_descent, is "all" below 100,000
    training rows; above, the training uses nested subsets that grow. The partition is determined by the ids of the
    table."""
    epochs: int = Field(default=10, ge=0, le=MAX_EPOCHS)
    """Passes over all batches. 0 leaves the number to the guards of all parties on one computer: the largest
    number, up to 10, at which no guard refuses what the job discloses about columns. This is the default without an
    optimizer."""
    seed: int = Field(default=0, ge=0, le=MAX_INTEGER)
    """Determines the order of batches and the initial weights, not the batches; shared by all parties."""
    test_fraction: float = Field(default=0.0, ge=0, lt=1)
    """Share of rows held out for metrics; with 0, metrics are taken on the training rows."""
    split: int = Field(default=0, ge=0, le=MAX_INTEGER)
    """Selects which rows are held out; `vfl.stratified` finds a split that holds classes out evenly."""
    evaluate_every: int = Field(default=0, ge=0, le=MAX_ITERATIONS)
    """Rounds between joint evaluations. 0 evaluates at the end only, or every round with a target or patience."""
    target: Target | None = None
    """Stops the training early when a metric is good enough."""
    patience: Patience | None = None
    """Stops the training early when a metric stops improving."""
    prepare: Preparation = Preparation()
    """How each party prepares missing values, texts and numbers of its columns before they are scaled."""
    weights: Weights | None = None
    """Weights of rows and classes; without it, all count the same."""
    positive: str | None = None
    """The class, of two, that probabilities and metrics refer to, by its label. By default 1, true or yes against
    0, -1, false or no, and otherwise the rarer class."""
    exposure: str | None = None
    """A column of the party with labels: the time, or the number of units, over which a count or an amount was
    observed. The model does not see it; predictions are for one unit of it."""
    scale: Literal["standard", "robust", "none"] = "standard"
    """How each party scales its columns, from its training rows: by mean and standard deviation, or by median and
    quartiles."""
    reshuffle: bool = False
    """Draws new batches every epoch. Under a sealed residual this adds equations about labels and must be accepted."""
    max_label_auc: float | None = Field(default=None, gt=0.5, lt=1)
    """Refuses the job if opened gradients could rank labels above this AUC."""
    reason_codes: int = Field(default=0, ge=0, le=100)
    """The largest number of reason codes that a party may send about a scored row: its columns that cost the row most,
    under names that it chooses ([reasons](scorecard.md#reasons-and-export)). The party's owner decides at scoring
    whether it sends any; with 0 none may be sent."""
    accepts: tuple[str, ...] = ()
    """The [leaks](#leaks) to which all parties agree, by name; all other leaks are refused."""

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, options: Any) -> Any:
        """Fill in options that are left out, as the model chooses (`securevfl.optim.defaults`)."""
        return fill_defaults(options) if isinstance(options, Mapping) else options

    @field_validator("batch_size", mode="plain")
    @classmethod
    def _read_batch_size(cls, value: Any) -> BatchSize:
        if value in ("all", "growing"):
            return "all" if value == "all" else "growing"
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_BATCH_ROWS:
            return value
        raise ValueError(
            f'should be a whole number from 1 to {MAX_BATCH_ROWS:,}, "all" for one batch of all training rows, or '
            '"growing"'
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
        return _required(OPTIMIZERS.read(value))

    @field_validator("protocol", mode="before")
    @classmethod
    def _read_protocol(cls, value: Any) -> Any:
        return _required(Protocol.read(value))

    @field_validator("prepare", "patience", "weights", "target", mode="before")
    @classmethod
    def _read_table(cls, value: Any, info: ValidationInfo) -> Any:
        return read_nested(NESTED_TABLES[str(info.field_name)], value)

    def schedule(self, rows: int | Register) -> Schedule:
        """Return which rows of a table are held out and which make a batch.

        Args:
            rows: number of rows of a table without ids, or the register of a table.

        Returns:
            The schedule.
        """
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
        """How columns are scaled for the model: as `scale` states, or not at all."""
        return self.scale if self.model.scales else "none"

    @property
    def loss(self) -> Loss:
        """The loss that is minimised: the model's loss with the job's weights and exposure."""
        loss = self.model.loss
        if self.exposure is not None:
            assert isinstance(loss, LogLinkLoss), "a job is refused whose loss takes no exposure"
            loss = OffsetLoss(loss)
        return loss if self.weights is None else WeightedLoss(loss, self.weights.limit)

    @property
    def residual_bound(self) -> float:
        """Upper bound of |g| of one entry."""
        return self.model.residual_bound * (1.0 if self.weights is None else self.weights.limit)

    @property
    def equations_change(self) -> bool:
        """Whether a passive party opens different equations in every local step.

        This happens if its Jacobian changes with the weights, or if rows are weighted again.
        """
        return not self.model.static_jacobian or self.optimizer.weighs_instances

    @property
    def equations(self) -> int:
        """Number of new equations about the residuals of a batch that each parameter of a passive party opens in a run.

        A constant Jacobian gives the same equations every epoch unless rows are reshuffled. A Jacobian that changes
        with the weights, or rows that are weighted again, give different equations in every local step with its own
        opening.
        """
        if self.equations_change:
            return self.epochs * self.model.openings(self.optimizer.steps)
        return self.epochs if self.reshuffle else 1

    @property
    def evaluation_interval(self) -> int:
        """Rounds between joint evaluations during training; 0 for none."""
        return self.evaluate_every or (1 if self.stops_early else 0)

    @property
    def stops_early(self) -> bool:
        """Whether the leading party decides after each evaluation if the training stops."""
        return self.target is not None or self.patience is not None

    @property
    def decision_interval(self) -> int:
        """Rounds between two decisions of the leading party to continue, stop or roll back; 0 if it sends none."""
        return self.evaluation_interval if self.stops_early or self.optimizer.may_overshoot else 0


def _required(value: Any) -> Any:
    """Return a value that was passed or filled in.

    Args:
        value: the option's value; None if there is none.

    Returns:
        The value.

    Raises:
        ValueError: if there is none, because some models have no default.
    """
    if value is None:
        raise ValueError("is missing; add it")
    return value
