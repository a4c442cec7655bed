"""CELU-VFL (Fu et al. 2022): exchanges are stored and reused for local steps while the next exchange is in flight.

H_k (n, c) are party k's outputs on a batch, f their sum, g the *residual* (derivative of the loss by f, computed by the
active party, which has the labels), and J the Jacobian of a party's outputs by its weights. An *exchange* is the H_k
and g of one batch. Each party stores its latest W exchanges in a *workset table* and uses each R times. Round t is
1. passive k -> active    H_k of batch t, with the current weights
   both                   meanwhile R - 1 local steps on stored exchanges, in turn (`securevfl.optim.workset`)
2. active                 f, from its outputs after the local steps and the sum of the H_k; g at f
   active -> passive k    g, encrypted or in the clear
   both                   one step on batch t, whose exchange is then stored; the oldest exchange is deleted
Comments refer to these steps by number. In a local step the others' outputs and, at a passive party, g remain as
exchanged. With `xi`, rows are weighed (`instance_weights`). With `depth` > 1, several exchanges are in flight
(`pipeline`). W = 1 is FedBCD-p with Q = R local steps, R = 1 is FedSGD. The model does not depend on timing.

An interrupted run resumes in another session, from the states that its checkpoints have stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from securevfl.base.arrays import Floats
from securevfl.models.base import Model
from securevfl.models.block import Block
from securevfl.optim.instance_weights import WeightedModel, cosines
from securevfl.optim.pipeline import receive_in_flight
from securevfl.optim.rounds import RoundsOptimizer, TrainingParty
from securevfl.optim.rules import Updater
from securevfl.optim.workset import E, Workset, WorksetRow
from securevfl.protocols.link import ActiveLink, PassiveLink
from securevfl.protocols.message_protocol import Release
from securevfl.protocols.residuals.base import Batch, Reply

MAX_SIMULATED_STEPS = 100_000
"""Largest number of local steps for which the number of openings is computed exactly."""


class CeluVFL(RoundsOptimizer):
    """CELU-VFL: local steps on stored exchanges while the next exchange is in flight."""

    name: ClassVar[str] = "celu"
    R: int = Field(default=5, ge=1, le=10_000)
    """Number of times that each exchange is used; the first time when it arrives."""
    W: int = Field(default=5, ge=1, le=10_000)
    """Number of exchanges that each party stores."""
    xi: float | None = Field(default=None, gt=0, le=90)
    """Maximum angle in degrees between a row's outputs (or derivatives) at the exchange and now. Within it, the row is
    weighed by the cosine of the angle, beyond it by 0. If `xi` is not set, all rows have weight 1. With encrypted
    residuals, weighted gradients of linear models reveal more about the labels."""
    depth: int = Field(default=1, ge=1, le=1_000)
    """Maximum number of exchanges in flight; 1, as in the paper, means one exchange during the local steps."""

    @property
    def label(self) -> str:
        """The optimizer's name in tables of costs."""
        return self.labelled("CELU-VFL" if self.depth == 1 else "CELU-VFL, pipeline")

    @property
    def steps(self) -> int:
        """Number of steps for each exchange."""
        return self.R

    @property
    def weighs_instances(self) -> bool:
        """Whether a party may weigh the rows of a batch differently in every local step."""
        return self.xi is not None and self.R > 1

    @property
    def max_open_exchanges(self) -> int:
        """Number of exchanges that are stored in the table or in flight at the same time."""
        return self.W + self.depth

    def count_openings(self, model: Model, batches: Collection[int]) -> int:
        """Return the number of gradients that are decrypted: one per iteration, and one per local step if J changes.

        For very long runs the upper bound of R gradients per iteration is returned, because the exact number takes a
        simulation of all steps.
        """
        if self.agreement(model).openings == 1:
            return len(batches)
        if len(batches) * self.R > MAX_SIMULATED_STEPS:
            return len(batches) * self.R
        table, steps = Workset[int](self.W, self.R), 0
        for t, batch in enumerate(batches):
            steps += 0 if self.W == 1 else sum(table.sample() is not None for _ in range(self.R - 1))
            table.put(batch, t, t)
            steps += 0 if self.W > 1 else sum(table.sample() is not None for _ in range(self.R - 1))
        return len(batches) + steps

    def init_state(self, model: Block, state: Mapping[str, Any] | None) -> CeluMemory:
        """Return the optimizer's state before the first round, or the stored state of an earlier session."""
        return CeluMemory(self, model, state)

    def drain(self, party: TrainingParty, link: ActiveLink) -> None:
        """Receive the outputs that passive parties have already sent."""
        receive_in_flight(party.memory.received, self.depth, party, link)

    def active(self, party: TrainingParty, link: ActiveLink) -> Iterator[None]:
        """Run the active party's rounds, and yield after each."""
        memory: CeluMemory = party.memory
        openings = 1 if party.model.static_jacobian and not self.weighs_instances else self.R

        def restore(t: int, uses: int, batch: Batch, saved: Mapping[str, Floats]) -> ActiveExchange:
            link.publish(saved["down"], batch, resend_of=Release(t, min(uses, openings)))
            return ActiveExchange(batch, saved["others"], saved["down"])

        table = memory.restore_table(party, restore)
        for t, batch in enumerate(party.batches(), party.start):
            sum_task = link.sum_in_background(batch) if self.depth == 1 else None  # step 1
            if self.W > 1:
                self._active_steps(party, table, t)
            others = link.sum(batch, memory.next_received()) if sum_task is None else sum_task.result()
            g = party.residual(party.model.combine(batch.X, others), batch)
            exchange = ActiveExchange(batch, others, party.model.output_gradient(batch.X, others, g))
            link.publish(exchange.down, batch)  # step 2
            party.updater.begin()
            self._step(party, party.model.gradient(batch.X, others, g), batch, t)
            table.put(batch.index, exchange, t)
            if self.W == 1:
                self._active_steps(party, table, t)
            yield

    def passive(self, party: TrainingParty, link: PassiveLink) -> Iterator[None]:
        """Run a passive party's rounds, and yield after each."""
        memory: CeluMemory = party.memory

        def restore(t: int, uses: int, batch: Batch, saved: Mapping[str, Floats]) -> PassiveExchange:
            learned = [(np.ones(len(batch.X)), saved["gradient"])] if "gradient" in saved else []
            return PassiveExchange(batch, link.reply(), saved.get("H"), learned)

        table = memory.restore_table(party, restore)
        for t, batch in enumerate(party.batches(), party.start):
            reply_task = None
            if self.depth == 1:
                memory.sent.append(party.model.forward(batch.X))
                reply_task = link.exchange_in_background(memory.sent[0], batch)  # step 1
            else:
                for k in range(len(memory.sent), self.depth):  # step 1, for the next batches
                    if (next_batch := party.upcoming_batch(k)) is not None:
                        memory.sent.append(party.model.forward(next_batch.X))
                        link.contribute(memory.sent[-1], next_batch)
            if self.W > 1:
                self._passive_steps(party, table, t)
            reply = link.reply() if reply_task is None else reply_task.result()  # step 2
            H = memory.sent.popleft()
            exchange = PassiveExchange(batch, reply, H if self.weighs_instances else None)
            party.updater.begin()
            self._step(party, exchange.gradient(party.model, None), batch, t)
            for removed in table.put(batch.index, exchange, t):
                removed.reply.close()
            if self.W == 1:
                self._passive_steps(party, table, t)
            yield

    def _active_steps(self, party: TrainingParty, table: Workset[ActiveExchange], t: int) -> None:
        """Take the local steps at the party with labels (Algorithm 2)."""
        model = party.model
        for exchange in self._sampled(table):
            X, others = exchange.batch.X, exchange.others
            g = party.loss.residual(model.combine(X, others), exchange.y)
            if self.xi is not None:
                g = g * cosines(exchange.down, model.output_gradient(X, others, g), self.xi)[:, None]
            self._step(party, model.gradient(X, others, g), exchange.batch, t)

    def _passive_steps(self, party: TrainingParty, table: Workset[PassiveExchange], t: int) -> None:
        """Take the local steps at a party without labels (Algorithm 2)."""
        model = party.model
        for exchange in self._sampled(table):
            weights = None
            if self.xi is not None and exchange.H is not None:
                weights = cosines(exchange.H, model.forward(exchange.batch.X), self.xi)
            self._step(party, exchange.gradient(model, weights), exchange.batch, t)

    def _sampled(self, table: Workset[E]) -> Iterator[E]:
        """Yield the exchange of each local step of a round."""
        for _ in range(self.R - 1):
            if (exchange := table.sample()) is not None:
                yield exchange

    def _step(self, party: TrainingParty, gradient: Floats, batch: Batch, t: int) -> None:
        party.updater.step(gradient / len(batch.X), self.eta(t, party.parties))


@dataclass(repr=False)
class ActiveExchange:
    """An exchange at the active party.

    Attributes:
        batch: the data of one batch of rows at this party: columns, and targets if it has labels.
        others: the sum of all other parties' outputs (n, c).
        down: the residual that was sent (n, c).
    """

    batch: Batch
    others: Floats
    down: Floats

    @property
    def y(self) -> Floats:
        """The targets of the batch (n, c)."""
        return self.batch.labels

    @property
    def saved(self) -> dict[str, Floats]:
        """The arrays of the exchange that a checkpoint stores."""
        return {"others": self.others, "down": self.down}


@dataclass(repr=False)
class PassiveExchange:
    """An exchange at a passive party.

    Attributes:
        batch: the data of one batch of rows at this party: columns, and targets if it has labels.
        reply: the received residual, which may be encrypted.
        H: the outputs that were sent (n, c), if rows are weighed by them.
    """

    batch: Batch
    reply: Reply
    H: Floats | None
    _learned: list[tuple[Floats, Floats]] = field(default_factory=list)

    @property
    def saved(self) -> dict[str, Floats]:
        """The arrays of this exchange that a checkpoint stores.

        When a run is resumed, the active party sends the residual again. If J is constant and all rows have weight 1,
        the residual may not be used for another decryption, so the gradient is stored instead.
        """
        if self.H is not None:
            return {"H": self.H}
        return {"gradient": self._learned[0][1]} if self._learned else {}

    def gradient(self, model: Block, weights: Floats | None) -> Floats:
        """Return the gradient J^T (w * g), with w = `weights` (n,), or 1 for all rows if None.

        If J is constant, no product is computed twice for the same weights.
        """
        weighted = model if weights is None else WeightedModel(model, weights)
        if not model.static_jacobian:
            return self.reply.gradient(weighted, self.batch)
        row_weights = np.ones(len(self.batch.X)) if weights is None else weights
        for known_weights, known in self._learned:
            if np.array_equal(known_weights, row_weights):
                if weights is not None:
                    self.reply.repeat()
                return known
        gradient = self.reply.gradient(weighted, self.batch)
        self._learned.append((row_weights, gradient))
        return gradient


class CeluMemory(Updater):
    """The state of CELU-VFL between rounds: that of the update rule, the table, and the exchanges in flight.

    Args:
        optimizer: the options of CELU-VFL, such as W, R and xi.
        model: the party's model.
        state: the state of an earlier session, or None.

    Attributes:
        received: at the active party, sums that were received before their round.
        sent: at a passive party, outputs that were sent and have no residual yet.
    """

    def __init__(self, optimizer: CeluVFL, model: Block, state: Mapping[str, Any] | None) -> None:
        extra = ("table", "here", "sent")
        rule_state = None if state is None else {name: value for name, value in state.items() if name not in extra}
        super().__init__(optimizer.update, model, rule_state)
        self.received: deque[Floats] = deque(() if state is None else state.get("here", ()))
        self.sent: deque[Floats] = deque(() if state is None else state.get("sent", ()))
        saved: Mapping[str, Any] = {"steps": 0, "recent": [], "rows": []} if state is None else state["table"]
        self._saved: list[Mapping[str, Any]] = list(saved["rows"])
        self._table: Workset[Any] = Workset(optimizer.W, optimizer.R, steps=saved["steps"], recent=saved["recent"])

    def restore_table(
        self, party: TrainingParty, restore: Callable[[int, int, Batch, Mapping[str, Floats]], E]
    ) -> Workset[E]:
        """Return the table of stored exchanges, filled from the state of an earlier session.

        Args:
            party: this party, with its data and batches.
            restore: creates an entry from the index of an exchange, the number of its uses so far, its batch and its
                arrays.

        Returns:
            The table of stored exchanges.
        """
        for row in self._saved:
            t = row["exchange"]
            batch = party.batch_of_round(t)
            self._table.restore(
                batch.index, WorksetRow(restore(t, row["uses"], batch, row["kept"]), t, row["sampled"], row["uses"])
            )
        self._saved = []
        return self._table

    def next_received(self) -> Floats | None:
        """Return the sum of this round if it was received before the round; None otherwise."""
        return self.received.popleft() if self.received else None

    @property
    def state(self) -> dict[str, Any]:
        """This state as plain data and arrays, which a checkpoint stores."""
        rows = [
            {"exchange": row.inserted, "sampled": row.sampled, "uses": row.uses, "kept": row.entry.saved}
            for row in self._table.rows()
        ]
        clocks = {"steps": self._table.steps, "recent": list(self._table.recent)}
        in_flight = {name: list(values) for name, values in (("here", self.received), ("sent", self.sent)) if values}
        return super().state | {"table": clocks | {"rows": [*self._saved, *rows]}} | in_flight
