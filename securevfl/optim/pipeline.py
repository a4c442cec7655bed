"""A pipeline with bounded staleness: several batches are in flight, nothing is cached, and nothing is used twice.

H_k are party k's outputs on a batch, and g is the residual, the derivative of the loss by the sum of outputs, which the
active party (with labels) sends. A passive party continues with the next batches while the residual of an earlier one
is in flight, as in publish-and-subscribe training (PubSub-VFL, Liu et al. 2025):
1. passive k -> active    H_k of batch t + depth - 1, with the weights after batch t - 1
2. active -> passive k    g of batch t
   both                   one step on batch t
Comments refer to these steps by number. H_k and g were computed with weights that are at most depth - 1 steps old. A
round takes as long as the slowest transfer or computation, not as their sum. With `depth` 1 this is FedSGD. The number
of batches in flight is fixed, so the model does not depend on timing. Before an evaluation or a checkpoint, the active
party receives the outputs in flight.

An interrupted run resumes in another session, from the states that its checkpoints have stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pydantic import Field

from securevfl.base.arrays import Floats
from securevfl.models.block import Block
from securevfl.optim.rounds import RoundsOptimizer, TrainingParty
from securevfl.optim.rules import Updater
from securevfl.protocols.link import ActiveLink, PassiveLink
from securevfl.protocols.residuals.base import Batch


class Pipeline(RoundsOptimizer):
    """One step for each exchange, with `depth` exchanges in flight."""

    name: ClassVar[str] = "pipeline"
    depth: int = Field(default=2, ge=1, le=1_000)
    """Maximum number of batches in flight; outputs are at most depth - 1 steps old."""

    @property
    def label(self) -> str:
        """The optimizer's name in tables of costs."""
        return self.labelled("Pipeline")

    @property
    def max_open_exchanges(self) -> int:
        """Maximum number of exchanges whose residuals a passive party may use at the same time."""
        return self.depth

    def init_state(self, model: Block, state: Mapping[str, Any] | None) -> Any:
        """Return the optimizer's state before the first round, or the stored state of an earlier session."""
        return InFlight(self, model, state)

    def drain(self, party: TrainingParty, link: ActiveLink) -> None:
        """Receive the outputs that passive parties have already sent."""
        receive_in_flight(party.memory.received, self.depth, party, link)

    def active(self, party: TrainingParty, link: ActiveLink) -> Iterator[None]:
        """Run the active party's rounds, and yield after each."""
        received = party.memory.received
        for t, batch in enumerate(party.batches(), party.start):
            others = link.sum(batch, received.popleft() if received else None)
            g = party.residual(party.model.combine(batch.X, others), batch)
            link.publish(party.model.output_gradient(batch.X, others, g), batch)  # step 2
            self._step(party, party.model.gradient(batch.X, others, g), batch, t)
            yield

    def passive(self, party: TrainingParty, link: PassiveLink) -> Iterator[None]:
        """Run a passive party's rounds, and yield after each."""
        sent = self.depth - 1 if party.start else 0  # number of batches whose outputs an earlier session has sent
        for t, batch in enumerate(party.batches(), party.start):
            for k in range(sent, self.depth):
                if (next_batch := party.upcoming_batch(k)) is not None:
                    link.contribute(party.model.forward(next_batch.X), next_batch)  # step 1
            sent = self.depth - 1
            self._step(party, link.reply().gradient(party.model, batch), batch, t)
            yield

    def _step(self, party: TrainingParty, gradient: Floats, batch: Batch, t: int) -> None:
        party.updater.begin()
        party.updater.step(gradient / len(batch.X), self.eta(t, party.parties))


def receive_in_flight(received: deque[Floats], depth: int, party: TrainingParty, link: ActiveLink) -> None:
    """Receive the sums of outputs for batches up to depth - 1 rounds ahead, and append them to `received`."""
    for k in range(len(received) + 1, depth):
        if (batch := party.upcoming_batch(k)) is not None:
            received.append(link.collect(batch))


class InFlight(Updater):
    """The state of a pipeline between rounds.

    Args:
        optimizer: the options of the pipeline, such as its depth.
        model: the party's model.
        state: the state of an earlier session, or None.

    Attributes:
        received: at the active party, sums that were received before their round.
    """

    def __init__(self, optimizer: Pipeline, model: Block, state: Mapping[str, Any] | None) -> None:
        rule_state = None if state is None else {name: value for name, value in state.items() if name != "here"}
        super().__init__(optimizer.update, model, rule_state)
        self.received: deque[Floats] = deque(() if state is None else state["here"])

    @property
    def state(self) -> dict[str, Any]:
        """This state as plain data and arrays, which a checkpoint stores."""
        return super().state | {"here": list(self.received)}
