"""CELU-VFL (Fu et al. 2022): exchanges are kept and stepped on again while the next one is on its way.

Each party keeps its last W exchanges in a workset table and uses each R times (Algorithms 1 and 2): once when it comes,
and in R - 1 local steps, one batch of the table after the other. A round t is

1. passive k -> active    H_k of batch t, at the weights of now
   both                   meanwhile R - 1 local steps on batches of the table, in turn (`securevfl.optim.workset`)
2. active                 f from its own part, as the local steps have left it, and the sum of the H_k; g at f
   active -> passive k    g, sealed or open
   both                   one step on batch t, which then goes into the table; the oldest leaves

In a local step the others' outputs, and at a passive party g, stay as they were exchanged; the active party renews g by
its own weights. With `xi` each row counts by how far it has turned since then (`securevfl.optim.weighing`).

With W = 1 the batch of the exchange is all there is to step on, so the local steps come after it: that is FedBCD-p with
Q = R, the same weights bit for bit. With R = 1 it is FedSGD.

The exchange runs in a thread beside the local steps (`securevfl.runtime.beside`): a round takes as long as the longer
of the two. How many local steps a round has is fixed, and weights change in one thread alone, so the model does not
depend on timing: a simulation, organisations and a run that was cut and resumed come to the same one. For a resume the
active party seals the residuals of its table again, under the new session's key; nothing new is told by them.

Over sealed residuals what a passive party keeps is [[g]]. A local step is one product of it with the J of that moment,
its rows weighed, and one opening. A linear party without `xi` needs one of each an exchange. With `xi` it needs no
product where it has had one under the same weights of rows; it asks for an opening all the same, of the last product
blinded anew, as the active party could else tell from the messages how its outputs move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import numpy as np
from pydantic import Field

from securevfl.crypto.scheme import Floats
from securevfl.models.base import Block
from securevfl.optim.rounds import Learner, RoundsOptimizer
from securevfl.optim.update import Updater
from securevfl.optim.weighing import Weighed, cosines
from securevfl.optim.workset import Row, Workset
from securevfl.protocols.base import Batch, Reply
from securevfl.protocols.link import ActiveLink, PassiveLink

E = TypeVar("E")


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

    @property
    def label(self) -> str:
        return self.labelled("CELU-VFL")

    @property
    def steps(self) -> int:
        return self.R

    @property
    def reweighs(self) -> bool:
        return self.xi is not None and self.R > 1

    @property
    def kept(self) -> int:
        return self.W + 1  # the table's, and the one that comes in beside the steps on these

    def remember(self, model: Block, state: Mapping[str, Any] | None) -> CeluMemory:
        return CeluMemory(self, model, state)

    def active(self, party: Learner, link: ActiveLink) -> Iterator[None]:
        memory = _memory(party)

        def taken_up(t: int, batch: Batch, kept: Mapping[str, Floats]) -> Held:
            link.publish(kept["down"], batch, again=t)
            return Held(batch, kept["others"], kept["down"])

        table = memory.take_up(party, taken_up)
        for t, batch in enumerate(party.batches(), party.start):
            coming = link.sum_beside(batch)  # 1
            if self.W > 1:
                self._active_steps(party, table, t)
            others = coming.result()
            g = party.residual(party.model.joined(batch.X, others), batch)
            held = Held(batch, others, party.model.down(batch.X, others, g))
            link.publish(held.down, batch)  # 2
            party.updater.begin()
            self._step(party, party.model.gradient(batch.X, others, g), batch, t)
            table.put(batch.index, held, t)
            if self.W == 1:
                self._active_steps(party, table, t)
            yield

    def passive(self, party: Learner, link: PassiveLink) -> Iterator[None]:
        memory = _memory(party)

        def taken_up(t: int, batch: Batch, kept: Mapping[str, Floats]) -> Asked:
            return Asked(batch, link.reply(), kept.get("H"))

        table = memory.take_up(party, taken_up)
        for t, batch in enumerate(party.batches(), party.start):
            H = party.model.forward(batch.X)
            coming = link.exchange_beside(H, batch)  # 1
            if self.W > 1:
                self._passive_steps(party, table, t)
            held = Asked(batch, coming.result(), H if self.reweighs else None)  # 2
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
            g = party.loss.residual(model.joined(X, others), held.y)
            if self.xi is not None:
                g = g * cosines(held.down, model.down(X, others, g), self.xi)[:, None]
            self._step(party, model.gradient(X, others, g), held.batch, t)

    def _passive_steps(self, party: Learner, table: Workset[Asked], t: int) -> None:
        """Algorithm 2 at a party without labels."""
        model = party.model
        for held in self._sampled(table):
            weights = None
            if self.xi is not None and held.H is not None:
                weights = cosines(held.H, model.forward(held.batch.X), self.xi)
            self._step(party, held.gradient(model, weights), held.batch, t)

    def _sampled(self, table: Workset[E]) -> Iterator[E]:
        """What the local steps of a round are taken on, one after the other."""
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
        """Its targets (n x c)."""
        assert self.batch.y is not None, "the active party has labels"
        return self.batch.y

    @property
    def kept(self) -> dict[str, Floats]:
        """What a resume needs of it."""
        return {"others": self.others, "down": self.down}


@dataclass(repr=False)
class Asked:
    """An exchange at a passive party: the residual, which may be sealed, and the outputs H (n x c) that went up, where
    rows are weighed by them."""

    batch: Batch
    reply: Reply
    H: Floats | None
    _learned: list[tuple[Floats, Floats]] = field(default_factory=list)

    @property
    def kept(self) -> dict[str, Floats]:
        """What a resume needs of it, beside the residual that is sent again."""
        return {} if self.H is None else {"H": self.H}

    def gradient(self, model: Block, weights: Floats | None) -> Floats:
        """J^T (w g); without `weights` (n,) all rows count in full.

        Of a J that does not move no product is made twice under the same weights.
        """
        weighed = model if weights is None else Weighed(model, weights)
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
    """What a party remembers between rounds: what its rule does, and its table."""

    def __init__(self, optimizer: CeluVFL, model: Block, state: Mapping[str, Any] | None) -> None:
        own = None if state is None else {name: each for name, each in state.items() if name != "table"}
        super().__init__(optimizer.update, model, own)
        saved: Mapping[str, Any] = {"steps": 0, "recent": [], "rows": []} if state is None else state["table"]
        self._saved: list[Mapping[str, Any]] = list(saved["rows"])
        self._table: Workset[Any] = Workset(optimizer.W, optimizer.R, steps=saved["steps"], recent=saved["recent"])

    def take_up(self, party: Learner, again: Callable[[int, Batch, Mapping[str, Floats]], E]) -> Workset[E]:
        """The table, with what it held when the state was kept: `again` makes an entry of exchange t, of its batch and
        of what was kept of it."""
        for row in self._saved:
            t = row["exchange"]
            batch = party.visited(t)
            self._table.restore(batch.index, Row(again(t, batch, row["kept"]), t, row["sampled"], row["uses"]))
        self._saved = []
        return self._table

    @property
    def state(self) -> dict[str, Any]:
        rows = [
            {"exchange": row.inserted, "sampled": row.sampled, "uses": row.uses, "kept": row.entry.kept}
            for row in self._table.rows()
        ]
        clocks = {"steps": self._table.steps, "recent": list(self._table.recent)}
        return super().state | {"table": clocks | {"rows": [*self._saved, *rows]}}


def _memory(party: Learner) -> CeluMemory:
    assert isinstance(party.memory, CeluMemory), "the optimizer has made it"
    return party.memory
