"""What an optimizer of training by rounds is: a schedule of exchanges and local steps.

It sees sums, replies and its own party; it knows nothing of keys and messages.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Protocol

from pydantic import Field

from securevfl.crypto.scheme import Floats
from securevfl.models.base import Block, Model
from securevfl.optim.base import Optimizer
from securevfl.optim.rules import AnyRule
from securevfl.optim.sgd import Sgd
from securevfl.optim.update import Rule, Updater
from securevfl.protocols.base import Agreement, Batch
from securevfl.protocols.link import ActiveLink, PassiveLink


class Learner(Protocol):
    """A party as its optimizer sees it."""

    parties: int  # K
    start: int  # rounds done before this run, where it goes on from a checkpoint
    model: Block  # its own
    updater: Updater  # moves its weights, by the optimizer's rule

    def batches(self) -> Iterator[Batch]:
        """The batches in the order that all parties share, until the epochs are over."""

    def residual(self, f: Floats, batch: Batch) -> Floats:
        """g (n x c) from f (n x c); only the active party can."""


class RoundsOptimizer(Optimizer):
    """An optimizer whose rounds are sums and residuals. Each side yields whenever a round is over."""

    method: ClassVar[str] = "rounds"
    rule: AnyRule = Field(default_factory=Sgd)
    """How a gradient becomes a change of weights."""

    @property
    def update(self) -> Rule:
        """The rule that local steps go by: the one named, or one made of it."""
        return self.rule

    def labelled(self, name: str) -> str:
        """The name of an algorithm in a cost table, with the rule where it is not plain gradient descent."""
        return name if isinstance(self.rule, Sgd) else f"{name} {self.rule.name}"

    def agreement(self, model: Model) -> Agreement:
        """What the parties agree on about residuals: a J that moves is opened anew in every local step."""
        return Agreement(1 if model.static_jacobian else self.steps, shares_outputs=model.shares_outputs)

    @abstractmethod
    def active(self, party: Learner, link: ActiveLink) -> Iterator[None]:
        """The active party's schedule."""

    @abstractmethod
    def passive(self, party: Learner, link: PassiveLink) -> Iterator[None]:
        """A passive party's schedule."""
