"""Base classes of all optimizers that a job can name: their options and step sizes.

An optimizer trains in rounds. In each round, the parties exchange model outputs and residuals (derivatives of the loss
by the outputs) of a batch of rows, and each party then takes one or more steps with its own weights (local steps). A
step is *safe* if it cannot increase the loss, whatever columns the parties have. If an evaluation shows that the loss
has increased, the training may *roll back*: it returns to an earlier model and takes shorter steps.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Collection, Sequence
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from securevfl.base.config import NamedOption
from securevfl.models.base import Model


class Training(NamedOption, ABC):
    """Base class of all optimizers that a job can name, with or without a step size.

    Attributes:
        family: the protocol family that uses it (`securevfl.families`).
        grows: whether it supports batch_size = "growing", nested subsets of rows.
    """

    family: ClassVar[str]
    grows: ClassVar[bool] = False

    @property
    def label(self) -> str:
        """The optimizer's name in tables of costs."""
        return self.name

    @property
    def steps(self) -> int:
        """Q, the number of local steps per round."""
        return 1

    @property
    def weighs_instances(self) -> bool:
        """Whether a party may weigh the rows of a batch differently in every local step."""
        return False

    @property
    def may_overshoot(self) -> bool:
        """Whether steps are longer than safe ones, so that evaluations may roll back the training."""
        return False

    @property
    def smallest_gain(self) -> float | None:
        """The decrease of the loss below which the optimizer ends a training; None if it never does."""
        return None

    def without_early_stop(self) -> Training:
        """Return the optimizer that does not end a training."""
        return self

    def evaluation_rounds(self, rounds: int, after: int) -> tuple[int, ...]:
        """Return the rounds after which the model is evaluated if the optimizer may end the training; else empty.

        Args:
            rounds: number of rounds of a complete run.
            after: number of first rounds after which no model is evaluated, because they use a part of the rows.

        Returns:
            The numbers of finished rounds, ascending. The last one is `rounds`.
        """
        return ()

    def count_openings(self, model: Model, batches: Collection[int]) -> int:
        """Return how many gradients are decrypted for a passive party in a run with these batches, in order."""
        return len(batches)

    def exchanges(self, passives: Sequence[str]) -> int:
        """Return how often parties exchange outputs in one iteration.

        If there are several, the parties take their steps in turn, so that only one party changes its weights between
        two exchanges.
        """
        return 1


class Optimizer(Training, ABC):
    """An optimizer with a step size.

    Attributes:
        own_size: whether each party can compute its step size from its columns, so that `lr` may be omitted.
    """

    own_size: ClassVar[bool] = False

    lr: float | None = Field(gt=0, le=1e12)
    """eta, the step size of the first round."""
    decay: Literal["none", "sqrt_t", "sqrt_tk", "inverse"] = "none"
    """Decay of the step size over rounds t, counted from 0, with K parties: "sqrt_t" is lr / sqrt(t + 1), "sqrt_tk" is
    lr / sqrt((t + 1) * K), "inverse" is lr / (t + 1)."""

    def eta(self, t: int, parties: int) -> float:
        """Return the step size of round t, counted from 0."""
        return self.first * self.shrunk(t, parties)

    @property
    def first(self) -> float:
        """The step size of the first round, `lr`."""
        assert self.lr is not None, "`check_set` has checked it"
        return self.lr

    def check_set(self) -> None:
        """Raise ValueError if no step size is set."""
        if self.lr is None:
            raise ValueError(
                "optimizer.lr: is missing; add it, because no party can compute a step size from its columns"
            )

    def shrunk(self, t: int, parties: int) -> float:
        """Return the factor by which the step size of round t, counted from 0, is smaller than the first one."""
        if self.decay == "none":
            return 1.0
        if self.decay == "inverse":
            return 1 / (t + 1)
        return float(1 / ((t + 1) * (parties if self.decay == "sqrt_tk" else 1)) ** 0.5)

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        if self.lr is None and not self.own_size:
            raise ValueError("lr: is missing; add it")
        return self
