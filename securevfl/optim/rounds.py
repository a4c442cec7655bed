"""What an optimizer of training by rounds is: a schedule of exchanges and local steps.

It sees sums, replies and its own party; it knows nothing of keys and messages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Protocol

from pydantic import Field

from securevfl.crypto.scheme import Floats
from securevfl.models.base import Block, Model
from securevfl.models.losses import Loss
from securevfl.optim.base import Optimizer, Training
from securevfl.optim.rules import AnyRule
from securevfl.optim.sgd import Sgd
from securevfl.optim.update import Rule, Updater
from securevfl.protocols.base import Agreement, Batch, Declared
from securevfl.protocols.link import ActiveLink, PassiveLink


class Remembered(Protocol):
    """What an optimizer remembers at a party between rounds."""

    @property
    def state(self) -> dict[str, Any]:
        """It as plain data and arrays, for the checkpoint."""


class Learner(Protocol):
    """A party as its optimizer sees it."""

    parties: int  # K
    start: int  # rounds done before this run, where it goes on from a checkpoint
    model: Block  # its own
    loss: Loss
    memory: Remembered  # as the optimizer has made it

    @property
    def updater(self) -> Updater:
        """The memory of an optimizer that goes by a rule: it moves the party's weights."""

    def batches(self) -> Iterator[Batch]:
        """The batches in the order that all parties share, until the epochs are over."""

    def visited(self, number: int) -> Batch:
        """The batch of an earlier round, counted from 0."""

    def later(self, k: int) -> Batch | None:
        """The batch k rounds after the one that is being done, or was done last; None after the end."""

    def residual(self, f: Floats, batch: Batch) -> Floats:
        """g (n x c) from f (n x c), by which the loss of the round is booked; only the active party can."""


class RoundsTraining(Training, ABC):
    """An optimizer whose rounds are sums and residuals. Each side yields whenever a round is over."""

    method: ClassVar[str] = "rounds"

    @property
    def kept(self) -> int:
        """How many exchanges a party may go on asking about at a time, the newest among them."""
        return 1

    def check(self, model: Model) -> None:
        """ValueError, with the remedy, if it cannot train this model."""

    def declares(self) -> list[Declared]:
        """What it has the active party tell beside sums and residuals."""
        return []

    @abstractmethod
    def remember(self, model: Block, state: Mapping[str, Any] | None) -> Remembered:
        """What it remembers at a party with this model: at the start, or as an earlier state of its memory has it."""

    def agreement(self, model: Model) -> Agreement:
        """What the parties agree on about residuals: a J that moves is opened anew in every local step."""
        openings = 1 if model.static_jacobian and not self.reweighs else self.steps
        return Agreement(openings, kept=self.kept, shares_outputs=model.shares_outputs)

    def settle(self, party: Learner, link: ActiveLink) -> None:
        """Takes in what passive parties have sent ahead of its round, so that the line is free for other sums; asked of
        the active party between two rounds."""

    @abstractmethod
    def active(self, party: Learner, link: ActiveLink) -> Iterator[None]:
        """The active party's schedule."""

    @abstractmethod
    def passive(self, party: Learner, link: PassiveLink) -> Iterator[None]:
        """A passive party's schedule."""


class RoundsOptimizer(RoundsTraining, Optimizer):
    """One whose local steps go by a rule."""

    rule: AnyRule = Field(default_factory=Sgd)
    """How a gradient becomes a change of weights."""

    @property
    def update(self) -> Rule:
        """The rule that local steps go by: the one named, or one made of it."""
        return self.rule

    def labelled(self, name: str) -> str:
        """The name of an algorithm in a cost table, with the rule where it is not plain gradient descent."""
        return name if isinstance(self.rule, Sgd) else f"{name} {self.rule.name}"

    def remember(self, model: Block, state: Mapping[str, Any] | None) -> Remembered:
        return Updater(self.update, model, state)
