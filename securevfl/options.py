"""The options of a job, on which all parties agree before anything runs.

Terms:
- The *active* or leading party has the labels. The other parties are *passive*.
- A *residual* is the derivative of the loss by a model output f. A party's gradient is a sum of residuals times inputs.
- A value is *opened* if a party learns it in the clear. For that party, each entry of an opened gradient is one *linear
  equation* about the residuals of a batch.
- In a *round* the parties exchange messages once. Then each party may take several *local steps*, which are updates of
  its weights with the same batch.
- *Held-out* rows are not trained on; metrics are computed on them.
- A *leak* is a disclosure beyond those that the protocol declares; the job must accept it by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Required, TypedDict

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
    """Training stops when the metric is at least this value, or at most this value for errors and losses."""


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


class JobKeywords(TypedDict, total=False):
    """The types of the keyword arguments of `Job`. A nested option is its object or a dict of that object's keys."""

    model: Required[Model | str | Mapping[str, Any]]
    optimizer: Training | str | Mapping[str, Any] | None
    protocol: Protocol | str | Mapping[str, Any] | None
    batch_size: int | Literal["all", "growing"]
    epochs: int
    seed: int
    test_fraction: float
    split: int
    evaluate_every: int
    target: Target | Mapping[str, Any] | None
    patience: Patience | Mapping[str, Any] | None
    prepare: Preparation | Mapping[str, Any]
    weights: Weights | Mapping[str, Any] | None
    positive: object
    exposure: str | None
    scale: Literal["standard", "robust", "none"]
    reshuffle: bool
    max_label_auc: float | None
    reason_codes: int
    accepts: Sequence[str]


class JobOptions(Config):
    """All options of a job, as a pydantic model. `securevfl.job.Job` adds checks, a digest and job files."""

    model: SerializeAsAny[Model]
    """The model that is trained."""
    optimizer: SerializeAsAny[Training] = Field(default=None, validate_default=True)
    """The optimizer: the schedule of exchanges between the parties and of local steps. Default for linear models:
    block_descent if the protocol is shares, otherwise block_newton; both use all rows in each step."""
    protocol: Protocol = Field(default=None, validate_default=True)
    """How messages are protected: "shares" (secret sharing, which opens no intermediate value; the default if the model
    allows it), "ckks" or "paillier" (encryption of residuals), "open" (residuals are sent unencrypted), or a table
    with the keys of a protocol."""
    batch_size: BatchSize = 256
    """Rows per batch, or "all" for one batch of all training rows. "growing", for block_descent, is "all" below 100,000
    training rows; above, the training uses nested subsets that grow. The ids of the rows determine the batches."""
    epochs: int = Field(default=10, ge=0, le=MAX_EPOCHS)
    """Passes over all batches; with "all" or "growing", the number of iterations. 0 chooses the largest number, up to
    50, whose disclosures about columns are accepted by the checks of all parties; this needs all tables on one
    computer."""
    seed: int = Field(default=0, ge=0, le=MAX_INTEGER)
    """Seed of the order of batches and of the initial weights; the rows of a batch do not depend on it. All parties use
    it."""
    test_fraction: float = Field(default=0.0, ge=0, lt=1)
    """Share of rows held out for metrics; with 0, metrics are computed on the training rows."""
    split: int = Field(default=0, ge=0, le=MAX_INTEGER)
    """Number that selects which rows are held out; `vfl.stratified` finds one that holds out all classes evenly."""
    evaluate_every: int = Field(default=0, ge=0, le=MAX_ITERATIONS)
    """Rounds, or iterations on shares, between joint evaluations. 0 evaluates every round if the job has a target or
    patience, and otherwise only at the end."""
    target: Target | None = None
    """Stops the training early when a metric is good enough."""
    patience: Patience | None = None
    """Stops the training early when a metric stops improving."""
    prepare: Preparation = Preparation()
    """How each party prepares missing values, texts and numbers of its columns before they are scaled."""
    weights: Weights | None = None
    """Weights of rows and classes; without it, all count the same."""
    positive: str | None = None
    """Name of the class, of two, to which probabilities and metrics refer. Default: 1, true or yes if the other class
    is 0, -1, false or no; in all other cases the rarer class."""
    exposure: str | None = None
    """A column of the party with labels: the time, or the number of units, over which a count or an amount was
    observed. The model does not see it; predictions are for one unit of it."""
    scale: Literal["standard", "robust", "none"] = "standard"
    """How each party scales its columns, from its training rows: by mean and standard deviation, or by median and
    quartiles."""
    reshuffle: bool = False
    """Draws new batches every epoch. With encrypted residuals, each new batch discloses further equations about labels,
    so the job must accept this leak."""
    max_label_auc: float | None = Field(default=None, gt=0.5, lt=1)
    """Refuses the job if a party could rank the labels with an AUC above this value from the gradients it learns."""
    reason_codes: int = Field(default=0, ge=0, le=100)
    """The largest number of reason codes that a party may send about a scored row. A reason code names one of the
    columns that raised the row's score f most, under a name that the party chooses
    ([reasons](scorecard.md#reasons-and-export)). When rows are scored, each party decides whether it sends any; 0
    allows none."""
    accepts: tuple[str, ...] = ()
    """The [leaks](#leaks) to which all parties agree, by name; all other leaks are refused."""

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, options: Any) -> Any:
        """Fill in a default that depends on the model for each option that is left out (`securevfl.optim.defaults`)."""
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
        """Return which rows of a table are held out, and how the training rows are divided into batches.

        Args:
            rows: the number of rows of a table without ids, or the `Register` of the ids of a table with ids.

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
        """How columns are scaled before training: the value of `scale`, or "none" for models that need no scaling."""
        return self.scale if self.model.scales else "none"

    @property
    def loss(self) -> Loss:
        """The loss function that the training minimises, with the job's row weights and exposure applied."""
        loss = self.model.loss
        if self.exposure is not None:
            assert isinstance(loss, LogLinkLoss), "Job refuses an exposure for all other losses"
            loss = OffsetLoss(loss)
        return loss if self.weights is None else WeightedLoss(loss, self.weights.limit)

    @property
    def residual_bound(self) -> float:
        """Upper bound of |g| for each entry g of a residual."""
        return self.model.residual_bound * (1.0 if self.weights is None else self.weights.limit)

    @property
    def equations_change(self) -> bool:
        """Whether a passive party learns different equations about the residuals in every local step.

        This happens if the Jacobian of its outputs by its weights changes with the weights, or if rows get new weights
        in every step.
        """
        return not self.model.static_jacobian or self.optimizer.weighs_instances

    @property
    def equations(self) -> int:
        """The number of linear equations about one batch's residuals that a passive party learns per weight in a run.

        If the Jacobian is constant, the equations are the same in every epoch unless rows are reshuffled. If it changes
        with the weights, or rows get new weights, each local step opens a different equation.
        """
        if self.equations_change:
            return self.epochs * self.model.openings(self.optimizer.steps)
        return self.epochs if self.reshuffle else 1

    @property
    def evaluation_interval(self) -> int:
        """The number of rounds between two joint evaluations during training; 0 if they have no fixed interval."""
        return self.evaluate_every or (1 if self.target is not None or self.patience is not None else 0)

    @property
    def evaluates_between_rounds(self) -> bool:
        """Whether models are also evaluated before the end of the training."""
        return self.evaluation_interval > 0 or self.optimizer.smallest_gain is not None

    @property
    def may_roll_back(self) -> bool:
        """Whether evaluations may show that steps are too long, so that the training rolls back.

        No step of weights of pairs is safe for all columns, because the products of two parties' components may be
        correlated.
        """
        return self.evaluates_between_rounds and (self.optimizer.may_overshoot or self.model.pair_rank > 0)

    @property
    def stopping(self) -> Patience | None:
        """When a training stops because it no longer improves: by `patience`, or by the optimizer's early stop."""
        if (gain := self.optimizer.smallest_gain) is None:
            return self.patience
        return Patience(metric="loss", evaluations=1, tolerance=gain)

    @property
    def stops_early(self) -> bool:
        """Whether the active party may end the training early, which it decides after each evaluation."""
        return self.target is not None or self.stopping is not None

    @property
    def decision_interval(self) -> int:
        """Number of rounds between two messages by which the active party continues, stops or rolls back the training.

        0 if there are no such messages.
        """
        return self.evaluation_interval if self.stops_early or self.may_roll_back else 0


def _required(value: Any) -> Any:
    """Return the value of an option, or raise ValueError if it has none.

    Args:
        value: the option's value, passed or filled in by default; None if there is none.

    Returns:
        The value.

    Raises:
        ValueError: if it is None; some models have no default.
    """
    if value is None:
        raise ValueError("is missing; add it")
    return value
