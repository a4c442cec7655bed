"""What an optimizer of training by rounds is: a schedule of exchanges and local steps.

It sees sums, replies and its own party; it knows nothing of keys and messages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from pydantic import Field

from securevfl.base.arrays import Floats
from securevfl.models.base import Model
from securevfl.models.block import Block
from securevfl.models.loss import Loss
from securevfl.optim.optimizer import Optimizer, Training
from securevfl.optim.rule_choice import AnyRule
from securevfl.optim.rules import Rule, Sgd, Updater
from securevfl.protocols.declarations import MessageDeclaration
from securevfl.protocols.link import ActiveLink, PassiveLink
from securevfl.protocols.residuals.base import Agreement, Batch


class Learner(Protocol):
    """A party as its optimizer sees it."""

    parties: int  # K
    start: int  # rounds done before this run, where it goes on from a checkpoint
    model: Block  # its own
    loss: Loss
    memory: Any  # as the optimizer has made it; its `state` is plain data and arrays, for the checkpoint

    @property
    def updater(self) -> Updater:
        """The memory of an optimizer that goes by a rule: it moves the party's weights."""

    def batches(self) -> Iterator[Batch]:
        """Yield the batches in the order that all parties share, until the epochs are over."""

    def visited(self, number: int) -> Batch:
        """Return the batch of an earlier round, counted from 0."""

    def later(self, k: int) -> Batch | None:
        """Return the batch k rounds after the one being done, or done last; None after the end."""

    def residual(self, f: Floats, batch: Batch) -> Floats:
        """g (n x c) from f (n x c), by which the loss of the round is booked; only the active party can."""


class RoundsTraining(Training, ABC):
    """An optimizer whose rounds are sums and residuals. Each side yields whenever a round is over."""

    family: ClassVar[str] = "rounds"

    @property
    def max_open_exchanges(self) -> int:
        """How many exchanges a party may go on asking about at a time, the newest among them."""
        return 1

    def check(self, model: Model) -> None:
        """ValueError, with the remedy, if it cannot train this model."""

    def declares(self) -> list[MessageDeclaration]:
        """Declare what this optimizer has the active party tell beside sums and residuals."""
        return []

    @abstractmethod
    def init_state(self, model: Block, state: Mapping[str, Any] | None) -> Any:
        """Make the optimizer's memory at a party with this model: as it is at the start, or as `state` kept it."""

    def agreement(self, model: Model) -> Agreement:
        """Return what the parties agree on about residuals: where J moves with the weights, gradients are opened anew
        in every local step."""
        openings = 1 if model.static_jacobian and not self.weighs_instances else self.steps
        return Agreement(openings, max_open_exchanges=self.max_open_exchanges, shares_outputs=model.shares_outputs)

    def count_openings(self, model: Model, visits: Sequence[int]) -> int:
        return len(visits) * self.agreement(model).openings

    def drain(self, party: Learner, link: ActiveLink) -> None:
        """Take in what passive parties have sent ahead of its round, so that the line is free for other sums; the
        active party does this between two rounds."""

    @abstractmethod
    def active(self, party: Learner, link: ActiveLink) -> Iterator[None]:
        """Run the active party's rounds, and yield after each."""

    @abstractmethod
    def passive(self, party: Learner, link: PassiveLink) -> Iterator[None]:
        """Run a passive party's rounds, and yield after each."""


class RoundsOptimizer(RoundsTraining, Optimizer):
    """One whose local steps go by a rule."""

    rule: AnyRule = Field(default_factory=Sgd)
    """How a gradient becomes a change of weights."""

    @property
    def update(self) -> Rule:
        """The rule that local steps go by: the one named, or one made of it."""
        return self.rule

    def labelled(self, name: str) -> str:
        """Return the name of an algorithm for a cost table, with the update rule where it is not plain gradient
        descent."""
        return name if isinstance(self.rule, Sgd) else f"{name} {self.rule.name}"

    def init_state(self, model: Block, state: Mapping[str, Any] | None) -> Any:
        return Updater(self.update, model, state)
