"""CELU-VFL (Fu et al. 2022): exchanges are kept and stepped on again while the next one is on its way.

Each party keeps its last W exchanges in a workset table and uses each R times (Algorithms 1 and 2): once when it comes,
and in R - 1 local steps, one batch of the table after the other. A round t is

1. passive k -> active    H_k of batch t, at the weights of now
   both                   meanwhile R - 1 local steps on batches of the table, in turn (`securevfl.optim.celu`)
2. active                 f from its own part, as the local steps have left it, and the sum of the H_k; g at f
   active -> passive k    g, sealed or open
   both                   one step on batch t, which then goes into the table; the oldest leaves

In a local step the others' outputs, and at a passive party g, stay as they were exchanged; the active party renews g by
its own weights. With `xi` each row counts by how far it has turned since then (`securevfl.optim.celu`).

With W = 1 the batch of the exchange is all there is to step on, so the local steps come after it: that is FedBCD-p with
Q = R, the same weights bit for bit. With R = 1 it is FedSGD.

With `depth` above 1 several exchanges are in flight, as in `securevfl.optim.rounds`: at the start of round t a
passive party sends H_k of batch t + depth - 1, and a round takes as long as the slowest of its transfers and of its
work. What goes into the table is then of weights up to depth - 1 rounds older.

With depth 1 the exchange runs in a thread beside the local steps (`securevfl.runtime.party_threads`): a round takes as
long as the longer of the two. How many local steps a round has is fixed, and weights change in one thread alone, so the
model does not depend on timing: a simulation, organisations and a run that was cut and resumed come to the same one.
For a resume the active party seals the residuals of its table again, under the new session's key; nothing new is told
by them.

Over sealed residuals what a passive party keeps is [[g]]. A local step is one product of it with the J of that moment,
its rows weighed, and one opening. A linear party without `xi` needs one of each an exchange. With `xi` it needs no
product where it has had one under the same weights of rows; it asks for an opening all the same, of the last product
blinded anew, as the active party could else tell from the messages how its outputs move.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from securevfl.base.arrays import Floats
from securevfl.models.base import Model
from securevfl.models.block import Block
from securevfl.optim.instance_weights import WeightedModel, cosines
from securevfl.optim.pipeline import take_in
from securevfl.optim.rounds import Learner, RoundsOptimizer
from securevfl.optim.rules import Updater
from securevfl.optim.workset import E, Workset, WorksetRow
from securevfl.protocols.link import ActiveLink, PassiveLink
from securevfl.protocols.message_protocol import Release
from securevfl.protocols.residuals.base import Batch, Reply


class CeluVFL(RoundsOptimizer):
    """Local steps on the last exchanges, beside the next one."""

    name: ClassVar[str] = "celu"
    R: int = Field(default=5, ge=1)
    """How often each exchange is used, the first time when it comes."""
    W: int = Field(default=5, ge=1)
    """How many exchanges each party keeps."""
    xi: float | None = Field(default=None, gt=0, le=90)
    """Degrees up to which a row may have turned since its exchange to count, by its cosine; without, all rows count in
    full. Under a sealed residual, weighted gradients of linear models tell more of the labels."""
    depth: int = Field(default=1, ge=1)
    """How many exchanges are in flight at most; 1, as in the paper, has one at a time, beside the local steps."""

    @property
    def label(self) -> str:
        return self.labelled("CELU-VFL" if self.depth == 1 else "CELU-VFL, pipeline")

    @property
    def steps(self) -> int:
        return self.R

    @property
    def weighs_instances(self) -> bool:
        return self.xi is not None and self.R > 1

    @property
    def max_open_exchanges(self) -> int:
        return self.W + self.depth  # the table's, and those that come in beside the steps on these

    def count_openings(self, model: Model, visits: Sequence[int]) -> int:
        """One a visit, and one for each local step that the table has a row for where these are opened anew."""
        if self.agreement(model).openings == 1:
            return len(visits)
        table, steps = Workset[int](self.W, self.R), 0
        for t, batch in enumerate(visits):
            steps += 0 if self.W == 1 else sum(table.sample() is not None for _ in range(self.R - 1))
            table.put(batch, t, t)
            steps += 0 if self.W > 1 else sum(table.sample() is not None for _ in range(self.R - 1))
        return len(visits) + steps

    def init_state(self, model: Block, state: Mapping[str, Any] | None) -> CeluMemory:
        return CeluMemory(self, model, state)

    def drain(self, party: Learner, link: ActiveLink) -> None:
        take_in(party.memory.here, self.depth, party, link)

    def active(self, party: Learner, link: ActiveLink) -> Iterator[None]:
        memory: CeluMemory = party.memory
        openings = 1 if party.model.static_jacobian and not self.weighs_instances else self.R

        def taken_up(t: int, uses: int, batch: Batch, kept: Mapping[str, Floats]) -> Held:
            link.publish(kept["down"], batch, resend_of=Release(t, min(uses, openings)))
            return Held(batch, kept["others"], kept["down"])

        table = memory.take_up(party, taken_up)
        for t, batch in enumerate(party.batches(), party.start):
            coming = link.sum_in_background(batch) if self.depth == 1 else None  # 1
            if self.W > 1:
                self._active_steps(party, table, t)
            others = link.sum(batch, memory.came()) if coming is None else coming.result()
            g = party.residual(party.model.combine(batch.X, others), batch)
            held = Held(batch, others, party.model.output_gradient(batch.X, others, g))
            link.publish(held.down, batch)  # 2
            party.updater.begin()
            self._step(party, party.model.gradient(batch.X, others, g), batch, t)
            table.put(batch.index, held, t)
            if self.W == 1:
                self._active_steps(party, table, t)
            yield

    def passive(self, party: Learner, link: PassiveLink) -> Iterator[None]:
        memory: CeluMemory = party.memory

        def taken_up(t: int, uses: int, batch: Batch, kept: Mapping[str, Floats]) -> PassiveExchange:
            learned = [(np.ones(len(batch.X)), kept["gradient"])] if "gradient" in kept else []
            return PassiveExchange(batch, link.reply(), kept.get("H"), learned)

        table = memory.take_up(party, taken_up)
        for t, batch in enumerate(party.batches(), party.start):
            coming = None
            if self.depth == 1:
                memory.sent.append(party.model.forward(batch.X))
                coming = link.exchange_in_background(memory.sent[0], batch)  # 1
            else:
                for k in range(len(memory.sent), self.depth):  # 1, of batches ahead
                    if (later := party.later(k)) is not None:
                        memory.sent.append(party.model.forward(later.X))
                        link.contribute(memory.sent[-1], later)
            if self.W > 1:
                self._passive_steps(party, table, t)
            reply = link.reply() if coming is None else coming.result()  # 2
            H = memory.sent.popleft()
            held = PassiveExchange(batch, reply, H if self.weighs_instances else None)
            party.updater.begin()
            self._step(party, held.gradient(party.model, None), batch, t)
            for left in table.put(batch.index, held, t):
                left.reply.close()
            if self.W == 1:
                self._passive_steps(party, table, t)
            yield

    def _active_steps(self, party: Learner, table: Workset[Held], t: int) -> None:
        """Algorithm 2 at the party with labels."""
        model = party.model
        for held in self._sampled(table):
            X, others = held.batch.X, held.others
            g = party.loss.residual(model.combine(X, others), held.y)
            if self.xi is not None:
                g = g * cosines(held.down, model.output_gradient(X, others, g), self.xi)[:, None]
            self._step(party, model.gradient(X, others, g), held.batch, t)

    def _passive_steps(self, party: Learner, table: Workset[PassiveExchange], t: int) -> None:
        """Algorithm 2 at a party without labels."""
        model = party.model
        for held in self._sampled(table):
            weights = None
            if self.xi is not None and held.H is not None:
                weights = cosines(held.H, model.forward(held.batch.X), self.xi)
            self._step(party, held.gradient(model, weights), held.batch, t)

    def _sampled(self, table: Workset[E]) -> Iterator[E]:
        """Yield the exchanges on which the local steps of a round are taken, one after the other."""
        for _ in range(self.R - 1):
            if (held := table.sample()) is not None:
                yield held

    def _step(self, party: Learner, gradient: Floats, batch: Batch, t: int) -> None:
        party.updater.step(gradient / len(batch.X), self.eta(t, party.parties))


@dataclass(repr=False)
class Held:
    """An exchange at the active party: the sum of the others' outputs (n x c) and what went down."""

    batch: Batch
    others: Floats
    down: Floats

    @property
    def y(self) -> Floats:
        """The targets of the batch (n x c) at the active party."""
        return self.batch.labels

    @property
    def kept(self) -> dict[str, Floats]:
        """What a resume needs of it."""
        return {"others": self.others, "down": self.down}


@dataclass(repr=False)
class PassiveExchange:
    """An exchange at a passive party: the residual, which may be sealed, and the outputs H (n x c) that went up, where
    rows are weighed by them."""

    batch: Batch
    reply: Reply
    H: Floats | None
    _learned: list[tuple[Floats, Floats]] = field(default_factory=list)

    @property
    def kept(self) -> dict[str, Floats]:
        """What a resume needs of it, beside the residual that is sent again: one that has no openings left where J does
        not move and all rows count in full, and is not asked again."""
        if self.H is not None:
            return {"H": self.H}
        return {"gradient": self._learned[0][1]} if self._learned else {}

    def gradient(self, model: Block, weights: Floats | None) -> Floats:
        """J^T (w g); without `weights` (n,) all rows count in full.

        Of a J that does not move no product is made twice under the same weights.
        """
        weighed = model if weights is None else WeightedModel(model, weights)
        if not model.static_jacobian:
            return self.reply.gradient(weighed, self.batch)
        own = np.ones(len(self.batch.X)) if weights is None else weights
        for before, known in self._learned:
            if np.array_equal(before, own):
                if weights is not None:
                    self.reply.repeat()
                return known
        gradient = self.reply.gradient(weighed, self.batch)
        self._learned.append((own, gradient))
        return gradient


class CeluMemory(Updater):
    """What a party remembers between rounds: what its rule does, its table, and what is in flight.

    here: at the active party, the sums of outputs that were taken in before their round. sent: at a passive party, the
    outputs that went up and have no residual yet.
    """

    def __init__(self, optimizer: CeluVFL, model: Block, state: Mapping[str, Any] | None) -> None:
        extra = ("table", "here", "sent")
        own = None if state is None else {name: each for name, each in state.items() if name not in extra}
        super().__init__(optimizer.update, model, own)
        self.here: deque[Floats] = deque(() if state is None else state.get("here", ()))
        self.sent: deque[Floats] = deque(() if state is None else state.get("sent", ()))
        saved: Mapping[str, Any] = {"steps": 0, "recent": [], "rows": []} if state is None else state["table"]
        self._saved: list[Mapping[str, Any]] = list(saved["rows"])
        self._table: Workset[Any] = Workset(optimizer.W, optimizer.R, steps=saved["steps"], recent=saved["recent"])

    def take_up(self, party: Learner, again: Callable[[int, int, Batch, Mapping[str, Floats]], E]) -> Workset[E]:
        """Return the table with what it held when the state was kept: `again` makes an entry of exchange t, of how
        often it was used, of its batch and of what was kept of it."""
        for row in self._saved:
            t = row["exchange"]
            batch = party.visited(t)
            self._table.restore(
                batch.index, WorksetRow(again(t, row["uses"], batch, row["kept"]), t, row["sampled"], row["uses"])
            )
        self._saved = []
        return self._table

    def came(self) -> Floats | None:
        """Return the sum that was taken in for this round; None if it is still on its way."""
        return self.here.popleft() if self.here else None

    @property
    def state(self) -> dict[str, Any]:
        rows = [
            {"exchange": row.inserted, "sampled": row.sampled, "uses": row.uses, "kept": row.entry.kept}
            for row in self._table.rows()
        ]
        clocks = {"steps": self._table.steps, "recent": list(self._table.recent)}
        flight = {name: list(each) for name, each in (("here", self.here), ("sent", self.sent)) if each}
        return super().state | {"table": clocks | {"rows": [*self._saved, *rows]}} | flight
