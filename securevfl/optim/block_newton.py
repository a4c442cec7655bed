"""BlockNewton: few rounds on all rows, each block by the curvature that its party knows alone.

FedBCD (Liu et al. 2019) with Q = infinity on a quadratic model of each block, extrapolated over the rounds:

1. passive k -> active    H_k = X_k z_k at the extrapolated point z_k = theta_k + a / (a + 3) (theta_k - last)
   active                 minimises over its own block, all H_k held, until nothing is left to gain, and takes g there
2. active -> passives     the pace: a multiple m of the safe step, or that this was the last exchange
3. active -> passive k    g, sealed or open
   passive k              theta_k = z_k - m / (K - 1) P_k (X_k^T g / n + l2 z_k)

P_k is the inverse of the bound on the block's curvature (`securevfl.optim.curvature`; Boehning and Lindsay 1988). With
1 / (K - 1) of it the K - 1 passive blocks may all move at once without a rise (Richtarik and Takac 2016). Columns of
different parties hardly ever point the same way, so steps begin with m = OVER (times the loss's `slack`) and are cut,
to 1 at the least, whenever the active party's own loss has risen.

Extrapolation is Nesterov's (1983); a counts the rounds since it last began anew. A passive party begins anew by itself
where it would move against its gradient: (X_k^T g / n + l2 z_k) . (theta_k - last) > 0, the gradient test of O'Donoghue
and Candes (2015) on its own block. That tells nobody anything.

With smaller batches the same is done on each, by the curvature of its rows, and losses are compared batch by batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, cast

import numpy as np
from pydantic import Field

from securevfl.base.arrays import Floats
from securevfl.errors import ProtocolError
from securevfl.models.base import Model
from securevfl.models.block import Block
from securevfl.models.linear_block import Linear
from securevfl.models.loss import Loss
from securevfl.optim.block_solver import solve
from securevfl.optim.curvature import of_rows
from securevfl.optim.rounds import Learner, RoundsTraining
from securevfl.protocols.declarations import MessageDeclaration
from securevfl.protocols.link import ActiveLink, PassiveLink
from securevfl.protocols.residuals import pace
from securevfl.protocols.residuals.base import Batch
from securevfl.protocols.residuals.pace import Pace

GAIN, STILL = 1e-4, 1e-3  # of the loss in 3 visits; the second over the rows
OVER = 1.5  # m at the start
CUT = 0.75
ROSE = 1e-9  # of the loss: less is rounding
EXACT = 1e-3  # of `tolerance`: how far from its minimum, as a share of the loss, the active party's block may stay
ROUNDING = 1e-15  # the same for a tolerance of 0
FLAT = 3  # visits to each batch without gain before the end
FINE = 20  # the same, where coefficients are read with standard errors


class BlockNewton(RoundsTraining):
    """A handful of rounds for a linear model; meant for `batch_size = "all"`, or for batches of many rows."""

    name: ClassVar[str] = "block_newton"
    tolerance: float | None = Field(default=None, ge=0, lt=1)
    """Ends the training when the active party's loss has not fallen by this share in 3 rounds, which all learn; 0 never
    does. If left out 1e-4, and for counts and amounts 1e-3 over the rows, by which coefficients are some hundredths of
    a standard error off. The active party solves its own block to a thousandth of it."""

    @property
    def label(self) -> str:
        return "BlockNewton"

    def still(self, loss: Loss, rows: int) -> float:
        """Return the share of the loss that a gain may not be below for so many rows."""
        if self.tolerance is not None:
            return self.tolerance
        return min(GAIN, STILL / rows) if loss.reports_standard_errors else GAIN

    @staticmethod
    def floor(tolerance: float) -> float:
        """Return the share of the loss that the active party's own block may stay above its minimum in a round.

        It is far below the tolerance, so that what is left of the block never looks like the end of the training.
        """
        return max(ROUNDING, EXACT * tolerance)

    def check(self, model: Model) -> None:
        if not model.by_column:
            raise ValueError(
                f"optimizer {self.name} trains linear models; use optimizer fedbcd for a {model.name} model"
            )
        if model.loss.curvature is None:
            raise ValueError(
                f"loss {model.loss.name} states no curvature, by which optimizer {self.name} steps; state it, or "
                "use optimizer fedbcd"
            )

    def declares(self) -> list[MessageDeclaration]:
        return pace.declares()

    def init_state(self, model: Block, state: Mapping[str, Any] | None) -> BlockMemory:
        return BlockMemory(model, state)

    def active(self, party: Learner, link: ActiveLink) -> Iterator[None]:
        model, memory = _linear(party), cast(BlockMemory, party.memory)
        P = Preconditioners(model, party.loss, link.me)
        for batch in party.batches():
            own, others = P.of(batch), link.sum(batch)
            still = self.still(party.loss, len(batch.labels))
            within = self.floor(still) * memory.last(batch.index)
            f = solve(model, party.loss, batch.X, batch.labels, others, own, within=within)
            g = party.residual(f, batch)
            loss = float(party.loss.value(f, batch.labels).mean()) + model.penalty()
            flat = FINE if party.loss.reports_standard_errors else FLAT
            told = memory.judge(batch.index, loss, still, OVER * party.loss.step_factor, flat)
            link.broadcast(told, pace.PACE_SUBCHANNEL)
            if told.stop:
                return
            link.publish(g, batch)
            yield

    def passive(self, party: Learner, link: PassiveLink) -> Iterator[None]:
        model, memory = _linear(party), cast(BlockMemory, party.memory)
        P = Preconditioners(model, party.loss, link.me)
        for batch in party.batches():
            theta = model.theta
            at = model.theta = memory.extrapolated(theta)
            link.contribute(model.forward(batch.X), batch)
            own = P.of(batch)  # made while the active party solves its block
            told = link.recv_broadcast(Pace, pace.PACE_SUBCHANNEL)
            if told.stop:
                return
            most = OVER * party.loss.step_factor
            if not 1.0 <= told.multiple <= most:
                raise ProtocolError(f"{link.me}: a pace between 1 and {most:g} was expected of the active party")
            gradient = model.regularised(link.reply().gradient(model, batch) / len(batch.X))
            model.theta = at - told.multiple / len(link.passives) * (own @ gradient)
            memory.moved(theta, uphill=float(np.vdot(gradient, model.theta - theta)) > 0)
            yield


class BlockMemory:
    """What a party remembers between rounds.

    A passive party: the weights of a round ago, and a. The active party: the multiple m, and of each batch the loss at
    its last visit and the lowest so far; how many visits in a row have gained nothing.
    """

    def __init__(self, model: Block, state: Mapping[str, Any] | None) -> None:
        own = {} if state is None else state
        self._before: Floats = own.get("before", model.theta)
        self._momentum: int = own.get("momentum", 0)
        self._multiple: float = own.get("multiple", OVER)
        self._flat: int = own.get("flat", 0)
        batches = own.get("batches", [])
        self._last: dict[int, float] = dict(zip(batches, own.get("last", []), strict=True))
        self._lowest: dict[int, float] = dict(zip(batches, own.get("lowest", []), strict=True))

    @property
    def state(self) -> dict[str, Any]:
        """It as plain data and arrays."""
        return {
            "before": self._before,
            "momentum": self._momentum,
            "multiple": self._multiple,
            "flat": self._flat,
            "batches": list(self._last),
            "last": list(self._last.values()),
            "lowest": list(self._lowest.values()),
        }

    def extrapolated(self, theta: Floats) -> Floats:
        """z, where the weights are headed."""
        return theta + self._momentum / (self._momentum + 3) * (theta - self._before)

    def moved(self, before: Floats, *, uphill: bool) -> None:
        """Note that a step of one round was taken from these weights to the next."""
        self._before = before
        self._momentum = 0 if uphill else self._momentum + 1

    def last(self, batch: int) -> float:
        """Return the loss at the last visit to this batch, 1 before the first visit."""
        return self._last.get(batch, 1.0)

    def judge(self, batch: int, loss: float, tolerance: float, first: float = OVER, flat: int = FLAT) -> Pace:
        """How to go on, from the active party's loss at this visit to the batch; `first` is m at the start. flat: after
        so many visits without gain it is over."""
        if not self._last:
            self._multiple = first
        if loss > self._last.get(batch, np.inf) + ROSE * abs(loss):
            self._multiple = max(1.0, CUT * self._multiple)
        lowest = self._lowest.get(batch, np.inf)
        gained = not np.isfinite(lowest) or lowest - loss > tolerance * abs(lowest)
        self._flat = 0 if gained else self._flat + 1
        self._last[batch], self._lowest[batch] = loss, min(lowest, loss)
        return Pace(self._multiple, tolerance > 0 and self._flat >= flat * len(self._last))


class Preconditioners:
    """P of each batch of a party, made at its first visit."""

    def __init__(self, model: Linear, loss: Loss, who: str) -> None:
        self._model = model
        self._loss = loss
        self._who = who
        self._made: dict[int, Floats] = {}

    def of(self, batch: Batch) -> Floats:
        """P (d x d) by the rows of this batch."""
        if batch.index not in self._made:
            model = self._model
            self._made[batch.index] = of_rows([batch.X], model.gram, self._loss, model.decay, who=self._who)
        return self._made[batch.index]


def _linear(party: Learner) -> Linear:
    assert isinstance(party.model, Linear), "BlockNewton.check says so"
    return party.model
