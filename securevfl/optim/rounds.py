"""Interface of the optimizers for training by rounds: a schedule of exchanges and local steps.

In an exchange, passive parties (without labels) send their outputs into a sum, and the active party (with labels) sends
the residual g, the derivative of the loss by the sum f. A party's local steps update its weights with g. An optimizer
uses sums, replies (received residuals) and its party's data; keys and messages are hidden from it. An interrupted run
resumes in another session, from the states that its checkpoints have stored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
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


class TrainingParty(Protocol):
    """The attributes of a party that its optimizer uses.

    Attributes:
        parties: number of parties.
        start: number of rounds that were finished before a resume.
        model: the party's model.
        loss: the loss function that the training minimises (`securevfl.models.loss`).
        memory: what the optimizer stores between rounds; `memory.state` is plain data and arrays for a checkpoint.
        statements: statements about the training for its report, such as that it has not converged.
    """

    parties: int
    start: int
    model: Block
    loss: Loss
    memory: Any
    statements: list[str]

    @property
    def updater(self) -> Updater:
        """The state of an optimizer with an update rule, which changes the party's weights."""

    def batches(self) -> Iterator[Batch]:
        """Yield the batches of all epochs, in the common order of all parties."""

    def batch_of_round(self, number: int) -> Batch:
        """Return the batch of an earlier round, counted from 0."""

    def upcoming_batch(self, k: int) -> Batch | None:
        """Return the batch k rounds after the current one; None after the end."""

    def residual(self, f: Floats, batch: Batch) -> Floats:
        """Return g (n, c) for f (n, c), and record the loss of the round; only at the active party."""


class RoundsTraining(Training, ABC):
    """Base class of optimizers whose rounds consist of sums and residuals."""

    family: ClassVar[str] = "rounds"

    @property
    def max_open_exchanges(self) -> int:
        """Maximum number of exchanges, the newest included, whose residuals a passive party may use at a time."""
        return 1

    def check(self, model: Model) -> None:
        """Raise ValueError if the optimizer cannot train this model."""

    def declares(self) -> list[MessageDeclaration]:
        """Declare the messages that the active party sends in addition to sums and residuals; none by default."""
        return []

    @abstractmethod
    def init_state(self, model: Block, state: Mapping[str, Any] | None) -> Any:
        """Return the optimizer's state at a party.

        Args:
            model: the party's model.
            state: the stored state of an earlier session; None at the start.

        Returns:
            The state; see `TrainingParty.memory`.
        """

    def agreement(self, model: Model) -> Agreement:
        """Return the agreed limits on the use of residuals, and their format in messages.

        If the Jacobian of a party's outputs depends on its weights, a gradient is decrypted in every local step.
        """
        openings = 1 if model.static_jacobian and not self.weighs_instances else self.steps
        return Agreement(openings, max_open_exchanges=self.max_open_exchanges, shares_outputs=model.shares_outputs)

    def count_openings(self, model: Model, batches: Collection[int]) -> int:
        """Return how many gradients are decrypted for a passive party in a run with these batches, in order."""
        return len(batches) * self.agreement(model).openings

    def drain(self, party: TrainingParty, link: ActiveLink) -> None:
        """Receive the outputs that are in flight, so that other sums can use the channel.

        The active party calls this between two rounds.
        """

    @abstractmethod
    def active(self, party: TrainingParty, link: ActiveLink) -> Iterator[None]:
        """Run the active party's rounds, and yield after each."""

    @abstractmethod
    def passive(self, party: TrainingParty, link: PassiveLink) -> Iterator[None]:
        """Run a passive party's rounds, and yield after each."""


class RoundsOptimizer(RoundsTraining, Optimizer):
    """An optimizer whose local steps use an update rule."""

    rule: AnyRule = Field(default_factory=Sgd)
    """The update rule of local steps."""

    @property
    def update(self) -> Rule:
        """The update rule of local steps: the option `rule`, or a rule that calls it and changes its steps."""
        return self.rule

    def labelled(self, name: str) -> str:
        """Return the label of an algorithm in a cost table: its name, with its rule unless that is gradient descent."""
        return name if isinstance(self.rule, Sgd) else f"{name} {self.rule.name}"

    def init_state(self, model: Block, state: Mapping[str, Any] | None) -> Any:
        """Return the optimizer's state before the first round, or the stored state of an earlier session."""
        return Updater(self.update, model, state)
