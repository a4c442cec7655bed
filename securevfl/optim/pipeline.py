"""A pipeline of bounded staleness: several batches in flight, nothing cached, nothing used twice.

As publish-and-subscribe training does (PubSub-VFL, Liu et al. 2025) and pipelines of split networks before it, a
passive party goes on to the next batches while the residual of an earlier one is on its way:

1. passive k -> active    H_k of batch t + depth - 1, at the weights after batch t - 1
2. active -> passive k    g of batch t
   both                   one step on batch t

So the outputs and, at a passive party, g are of weights at most depth - 1 steps older than those that they move, and
a round takes as long as the slowest of its transfers and of its work, in place of their sum. With `depth` 1 it is
FedSGD, the same weights bit for bit. It is the measure of what is gained by overlap alone, without local steps.

What is in flight at the end of a round is fixed, so the model does not depend on timing. Before other sums go over
the line, as those of an evaluation, and before its state is kept, the active party takes in the outputs that are on
their way; a run that goes on from there has them from its state, and no passive party sends them again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pydantic import Field

from securevfl.base.arrays import Floats
from securevfl.models.block import Block
from securevfl.optim.rounds import Learner, RoundsOptimizer
from securevfl.optim.rules import Updater
from securevfl.protocols.link import ActiveLink, PassiveLink
from securevfl.protocols.residuals.base import Batch


class Pipeline(RoundsOptimizer):
    """One step on each exchange, `depth` exchanges in flight."""

    name: ClassVar[str] = "pipeline"
    depth: int = Field(default=2, ge=1)
    """How many batches are in flight at most; outputs are that many steps old, less one."""

    @property
    def label(self) -> str:
        return self.labelled("Pipeline")

    @property
    def max_open_exchanges(self) -> int:
        return self.depth

    def init_state(self, model: Block, state: Mapping[str, Any] | None) -> Any:
        return InFlight(self, model, state)

    def drain(self, party: Learner, link: ActiveLink) -> None:
        take_in(party.memory.here, self.depth, party, link)

    def active(self, party: Learner, link: ActiveLink) -> Iterator[None]:
        here = party.memory.here
        for t, batch in enumerate(party.batches(), party.start):
            others = link.sum(batch, here.popleft() if here else None)
            g = party.residual(party.model.combine(batch.X, others), batch)
            link.publish(party.model.output_gradient(batch.X, others, g), batch)  # 2
            self._step(party, party.model.gradient(batch.X, others, g), batch, t)
            yield

    def passive(self, party: Learner, link: PassiveLink) -> Iterator[None]:
        sent = self.depth - 1 if party.start else 0  # of the batches from this one on
        for t, batch in enumerate(party.batches(), party.start):
            for k in range(sent, self.depth):
                if (coming := party.later(k)) is not None:
                    link.contribute(party.model.forward(coming.X), coming)  # 1
            sent = self.depth - 1
            self._step(party, link.reply().gradient(party.model, batch), batch, t)
            yield

    def _step(self, party: Learner, gradient: Floats, batch: Batch, t: int) -> None:
        party.updater.begin()
        party.updater.step(gradient / len(batch.X), self.eta(t, party.parties))


def take_in(here: deque[Floats], depth: int, party: Learner, link: ActiveLink) -> None:
    """Take in the outputs on the batches up to depth - 1 rounds ahead, which are on their way."""
    for k in range(len(here) + 1, depth):
        if (batch := party.later(k)) is not None:
            here.append(link.collect(batch))


class InFlight(Updater):
    """What a party remembers between rounds: what its rule does, and at the active party the sums of outputs that were
    taken in before their round."""

    def __init__(self, optimizer: Pipeline, model: Block, state: Mapping[str, Any] | None) -> None:
        own = None if state is None else {name: each for name, each in state.items() if name != "here"}
        super().__init__(optimizer.update, model, own)
        self.here: deque[Floats] = deque(() if state is None else state["here"])

    @property
    def state(self) -> dict[str, Any]:
        return super().state | {"here": list(self.here)}
