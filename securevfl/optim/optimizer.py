"""What all trainings and optimizers have in common: their options, step sizes and what they declare."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from securevfl.base.config import NamedOption
from securevfl.models.base import Model


class Training(NamedOption, ABC):
    """What a job names as its optimizer, whatever its steps go by."""

    family: ClassVar[str]  # the family of training it belongs to (`securevfl.families`)
    grows: ClassVar[bool] = False  # whether it may visit parts of the rows that lie in each other

    @property
    def label(self) -> str:
        """Its name in a cost table."""
        return self.name

    @property
    def steps(self) -> int:
        """Q, the local steps a round."""
        return 1

    @property
    def weighs_instances(self) -> bool:
        """Whether a party may weigh the rows of a batch anew in every local step."""
        return False

    @property
    def may_overshoot(self) -> bool:
        """Whether steps are longer than safe ones, so that evaluations say where to go back."""
        return False

    def count_openings(self, model: Model, visits: Sequence[int]) -> int:
        """Count the gradients that a passive party has opened in a run with these visits, if residuals are sealed."""
        return len(visits)

    def exchanges(self, passives: Sequence[str]) -> int:
        """Exchanges of forward outputs in one visit to a batch. With more than one, parties take their steps in turn,
        so that one party alone moves between two exchanges."""
        return 1


class Optimizer(Training, ABC):
    """Steps of a size that is set, but for optimizers that know one (`own_size`)."""

    own_size: ClassVar[bool] = False

    lr: float | None = Field(gt=0)
    """eta, the size of the first step."""
    decay: Literal["none", "sqrt_t", "sqrt_tk", "inverse"] = "none"
    """How steps shrink over rounds t and K parties: lr / sqrt(t + 1), lr / sqrt(t K) from t = 1, or lr / (t + 1)."""

    def eta(self, t: int, parties: int) -> float:
        """Step size of round t, counted from 0."""
        return self.first * self.shrunk(t, parties)

    @property
    def first(self) -> float:
        """The first step size eta, which has been checked to be set (`check_set`)."""
        assert self.lr is not None, "it has been checked"
        return self.lr

    def check_set(self) -> None:
        """ValueError, with the remedy, where no step size is set."""
        if self.lr is None:
            raise ValueError("optimizer.lr: is missing; add it, as no party here knows a step by its columns")

    def shrunk(self, t: int, parties: int) -> float:
        """Return the step of round t, counted from 0, as a share of the first one."""
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
