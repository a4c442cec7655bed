"""An optimizer is a schedule of exchanges and local steps. It knows nothing of keys and messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Literal, Protocol

from pydantic import Field

from securevfl.config import Named
from securevfl.crypto.scheme import Floats
from securevfl.models.base import Model
from securevfl.models.kernel import KernelShare
from securevfl.models.linear import Linear
from securevfl.protocols.base import Agreement, Batch
from securevfl.protocols.link import ActiveLink, PassiveLink


class Trainee(Protocol):
    """A party as its optimizer sees it."""

    parties: int  # K
    start: int  # rounds done before this run, where it goes on from a checkpoint
    seed: int  # the job's, for sampling

    @property
    def model(self) -> Linear:
        """Its part of a linear model."""

    @property
    def kernel(self) -> KernelShare:
        """Its share of a kernel model."""

    def sample(self, rows: int) -> list[Batch]:
        """The first batches of the partition that hold as many rows, or all."""

    def batches(self) -> Iterator[Batch]:
        """The batches in the order that all parties share, until the epochs are over or the target is reached."""

    def residual(self, f: Floats, batch: Batch) -> Floats:
        """g (n x c) from f (n x c); only the active party can."""


class Optimizer(Named, ABC):
    """Options that all of them share. eta0 is `lr`; its decay is FedBCD 2019's: eta0 / sqrt(t + 1) over rounds t from
    0, or eta0 / sqrt(t K) over t from 1 and K parties; or "inverse", eta0 / (t + 1)."""

    trains_kernels: ClassVar[bool] = False  # those and nothing else
    several_active: ClassVar[bool] = False  # whether more than one party may have labels
    lr: float = Field(gt=0)
    decay: Literal["none", "sqrt_t", "sqrt_tk", "inverse"] = "none"

    def eta(self, t: int, parties: int) -> float:
        """Step size of round t, counted from 0."""
        if self.decay == "none":
            return self.lr
        if self.decay == "inverse":
            return self.lr / (t + 1)
        return float(self.lr / ((t + 1) * (parties if self.decay == "sqrt_tk" else 1)) ** 0.5)

    @property
    def label(self) -> str:
        """Its name in a cost table."""
        return self.name

    @property
    def steps(self) -> int:
        """Q, the local steps a round."""
        return 1

    def agreement(self, model: Model) -> Agreement:
        """What the parties agree on about residuals: a J that moves is opened anew in every local step."""
        return Agreement(1 if model.static_jacobian else self.steps, shares_outputs=model.shares_outputs)

    @abstractmethod
    def active(self, party: Trainee, link: ActiveLink) -> None:
        """The active party's schedule."""

    @abstractmethod
    def passive(self, party: Trainee, link: PassiveLink) -> None:
        """A passive party's schedule."""
