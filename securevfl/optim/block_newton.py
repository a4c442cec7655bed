"""BlockNewton: few rounds on all rows; each party scales its steps by the curvature of its block of weights.

The active party has the labels; K - 1 passive parties have none. Party k has columns X_k and weights theta_k; its
outputs are H_k, f is the sum of all outputs, and g the residual, the derivative of the loss by f. In each round:
1. passive k -> active    H_k = X_k z_k at the point z_k = theta_k + a / (a + 3) * (theta_k - previous theta_k)
   active                 minimises over its block for fixed H_k, and computes g at the minimum
2. active -> passives     the *pace*: a multiple m of the safe step, or the end of the training
3. active -> passive k    g, encrypted or in the clear
   passive k              theta_k = z_k - m / (K - 1) * P_k (X_k^T g / n + l2 * z_k)
P_k is the inverse of the bound on the block's curvature (`securevfl.optim.curvature`). m is reduced, to 1 at the least,
when the loss increases. a counts rounds since the latest restart of the extrapolation (Nesterov 1983), which a party
restarts when it would move against its gradient (O'Donoghue and Candes 2015). FedBCD (Liu et al. 2019) is related.

An interrupted run resumes in another session, from the states that its checkpoints have stored.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, cast

import numpy as np
from pydantic import Field

from securevfl.base.arrays import Floats
from securevfl.errors import DataNotice, ProtocolError
from securevfl.models.base import Model
from securevfl.models.block import Block
from securevfl.models.linear_block import Linear
from securevfl.models.loss import Loss
from securevfl.optim.block_solver import solve
from securevfl.optim.curvature import preconditioner_of_rows
from securevfl.optim.rounds import RoundsTraining, TrainingParty
from securevfl.protocols.declarations import MessageDeclaration
from securevfl.protocols.link import ActiveLink, PassiveLink
from securevfl.protocols.residuals import pace
from securevfl.protocols.residuals.base import Batch
from securevfl.protocols.residuals.pace import Pace

DEFAULT_TOLERANCE = 1e-4  # default relative decrease of the loss in 3 rounds below which the training ends
TOLERANCE_ROWS = 1e-3  # default tolerance times the number of rows, if coefficients are published with standard errors
INITIAL_MULTIPLE = 1.5  # step size of the first round as a multiple m of the safe step size
MULTIPLE_DECAY = 0.75  # factor by which m is multiplied after an increase of the loss
MIN_RELATIVE_INCREASE = 1e-9  # smaller increases of the loss are rounding errors
SOLVER_PRECISION = 1e-3  # precision of the active party's block, as a share of `tolerance`
MIN_PRECISION = 1e-15  # precision of the active party's block if the tolerance is 0
MAX_FLAT_ITERATIONS = 3  # number of rounds on each batch without improvement after which the training ends
MAX_FLAT_ITERATIONS_PRECISE = 20  # the same, if coefficients are published with standard errors


class BlockNewton(RoundsTraining):
    """Block Newton steps: a linear model converges in few rounds. Use `batch_size = "all"` or large batches."""

    name: ClassVar[str] = "block_newton"
    tolerance: float | None = Field(default=None, ge=0, lt=1)
    """The training ends when the active party's loss has not decreased by this share in 3 rounds; all parties learn
    this. 0 never ends the training. Default: 1e-4; for counts and amounts 1e-3 divided by the number of rows, so that
    coefficients are accurate to some hundredths of a standard error. The active party solves its block to a thousandth
    of this value."""

    @property
    def label(self) -> str:
        """The optimizer's name in tables of costs."""
        return "BlockNewton"

    def relative_tolerance(self, loss: Loss, rows: int) -> float:
        """Return the smallest relative decrease of the loss that counts as an improvement, for a number of rows."""
        if self.tolerance is not None:
            return self.tolerance
        return min(DEFAULT_TOLERANCE, TOLERANCE_ROWS / rows) if loss.reports_standard_errors else DEFAULT_TOLERANCE

    @staticmethod
    def block_precision(tolerance: float) -> float:
        """Return the precision, relative to the loss, to which the active party minimises its block in a round.

        It is far below `tolerance`, the relative decrease of the loss below which the training ends. So an imprecise
        block never looks like the end of the training.
        """
        return max(MIN_PRECISION, SOLVER_PRECISION * tolerance)

    def check(self, model: Model) -> None:
        """Raise ValueError unless the model is linear and its loss has a curvature bound."""
        if not model.by_column:
            raise ValueError(
                f"optimizer: {self.name} trains linear models; use optimizer fedbcd for a {model.name} model"
            )
        if model.loss.curvature is None:
            raise ValueError(
                f"model: loss {model.loss.name} has no curvature bound, which optimizer {self.name} needs; state one, "
                "or use optimizer fedbcd"
            )

    def declares(self) -> list[MessageDeclaration]:
        """Declare the message with the pace (the step size of the next round): sender, receiver, disclosure."""
        return pace.declares()

    def init_state(self, model: Block, state: Mapping[str, Any] | None) -> BlockMemory:
        """Return the optimizer's state before the first round, or the stored state of an earlier session."""
        return BlockMemory(model, state)

    def active(self, party: TrainingParty, link: ActiveLink) -> Iterator[None]:
        """Run the active party's rounds, and yield after each."""
        model, memory = _linear(party), cast(BlockMemory, party.memory)
        preconditioners, tolerance = Preconditioners(model, party.loss, link.me), 0.0
        for batch in party.batches():
            P_batch, others = preconditioners.of(batch), link.sum(batch)
            tolerance = self.relative_tolerance(party.loss, len(batch.labels))
            within = self.block_precision(tolerance) * memory.latest_loss(batch.index)
            f = solve(model, party.loss, batch.X, batch.labels, others, P_batch, within=within)
            g = party.residual(f, batch)
            loss = float(party.loss.value(f, batch.labels).mean()) + model.penalty()
            limit = MAX_FLAT_ITERATIONS_PRECISE if party.loss.reports_standard_errors else MAX_FLAT_ITERATIONS
            decision = memory.decide(batch.index, loss, tolerance, INITIAL_MULTIPLE * party.loss.step_factor, limit)
            link.broadcast(decision, pace.PACE_SUBCHANNEL)
            if decision.stop:
                return
            link.publish(g, batch)
            yield
        report_unconverged(party, link.me, memory.decrease, tolerance)

    def passive(self, party: TrainingParty, link: PassiveLink) -> Iterator[None]:
        """Run a passive party's rounds, and yield after each."""
        model, memory = _linear(party), cast(BlockMemory, party.memory)
        preconditioners = Preconditioners(model, party.loss, link.me)
        limit = INITIAL_MULTIPLE * party.loss.step_factor
        for batch in party.batches():
            theta = model.theta
            z = model.theta = memory.extrapolated(theta)
            link.contribute(model.forward(batch.X), batch)
            P_batch = preconditioners.of(batch)  # computed while the active party minimises over its block
            decision = link.recv_broadcast(Pace, pace.PACE_SUBCHANNEL)
            if decision.stop and self.relative_tolerance(party.loss, len(batch.X)) == 0:
                raise ProtocolError(
                    f"{link.me}: the active party ends the training early, but optimizer.tolerance is 0",
                    "ask the operator of that party for the reason",
                    code="SVFL-PROTOCOL-VALUES",
                )
            if decision.stop:
                return
            if not 1.0 <= decision.multiple <= limit:
                raise ProtocolError(
                    f"{link.me}: the active party multiplies the step size by {decision.multiple:g}, and only factors "
                    f"from 1 to {limit:g} are allowed",
                    code="SVFL-PROTOCOL-VALUES",
                )
            limit = decision.multiple  # the factor never grows
            gradient = model.regularised(link.reply().gradient(model, batch) / len(batch.X))
            model.theta = z - decision.multiple / len(link.passives) * (P_batch @ gradient)
            memory.record_step(theta, uphill=float(np.vdot(gradient, model.theta - theta)) > 0)
            yield


def report_unconverged(party: TrainingParty, name: str, decrease: float, tolerance: float) -> None:
    """Give a notice that a training has used all of its rounds before its stopping rule was met.

    Args:
        party: the active party, to whose statements the notice is added.
        name: name of the active party.
        decrease: the relative decrease of the loss in the latest round.
        tolerance: the decrease below which the training would end.
    """
    if tolerance == 0 or not decrease > tolerance:
        return
    statement = (
        "the training has not converged. It has used all of its rounds, and in the last one the loss still decreased "
        f"by a share of {decrease:.1g}; a training ends by itself when this share is below {tolerance:.1g}. Increase "
        'epochs, or leave epochs out and accept the leak "columns", which limits the number of rounds.'
    )
    party.statements.append(statement)
    warnings.warn(f"party {name}: {statement}", DataNotice, stacklevel=2)


class BlockMemory:
    """The optimizer's state between rounds.

    A passive party stores the weights of the previous round and a, the rounds since the latest restart. The active
    party stores the multiple m, the latest and the lowest loss of each batch, and the number of successive iterations
    without improvement.

    Args:
        model: the party's model.
        state: the state of an earlier session, or None.

    Attributes:
        decrease: the relative decrease of the loss below the lowest so far, in the latest iteration; nan if unknown.
    """

    def __init__(self, model: Block, state: Mapping[str, Any] | None) -> None:
        values = {} if state is None else state
        self._previous_theta: Floats = values.get("before", model.theta)
        self._momentum: int = values.get("momentum", 0)
        self._multiple: float = values.get("multiple", INITIAL_MULTIPLE)
        self._flat: int = values.get("flat", 0)
        self.decrease = np.nan
        batches = values.get("batches", [])
        self._latest: dict[int, float] = dict(zip(batches, values.get("last", []), strict=True))
        self._lowest: dict[int, float] = dict(zip(batches, values.get("lowest", []), strict=True))

    @property
    def state(self) -> dict[str, Any]:
        """This state as plain data and arrays, which a checkpoint stores."""
        return {
            "before": self._previous_theta,
            "momentum": self._momentum,
            "multiple": self._multiple,
            "flat": self._flat,
            "batches": list(self._latest),
            "last": list(self._latest.values()),
            "lowest": list(self._lowest.values()),
        }

    def extrapolated(self, theta: Floats) -> Floats:
        """Return z, the weights theta extrapolated along their latest change."""
        return theta + self._momentum / (self._momentum + 3) * (theta - self._previous_theta)

    def record_step(self, previous: Floats, *, uphill: bool) -> None:
        """Store the weights before this round's step; restart the extrapolation if it points against the gradient."""
        self._previous_theta = previous
        self._momentum = 0 if uphill else self._momentum + 1

    def latest_loss(self, batch: int) -> float:
        """Return the loss in the latest round on a batch; 1 before the first one."""
        return self._latest.get(batch, 1.0)

    def decide(
        self,
        batch: int,
        loss: float,
        tolerance: float,
        first: float = INITIAL_MULTIPLE,
        limit: int = MAX_FLAT_ITERATIONS,
    ) -> Pace:
        """Decide how the training continues.

        Args:
            batch: index of the batch.
            loss: the active party's loss on the batch.
            tolerance: smallest relative decrease of the loss that counts as an improvement.
            first: the multiple m of the safe step in the first round.
            limit: iterations on each batch without improvement before the training ends.

        Returns:
            The message to the passive parties.
        """
        if not self._latest:
            self._multiple = first
        if loss > self._latest.get(batch, np.inf) + MIN_RELATIVE_INCREASE * abs(loss):
            self._multiple = max(1.0, MULTIPLE_DECAY * self._multiple)
        lowest = self._lowest.get(batch, np.inf)
        improved = not np.isfinite(lowest) or lowest - loss > tolerance * abs(lowest)
        self.decrease = float((lowest - loss) / abs(lowest)) if np.isfinite(lowest) and lowest else np.nan
        self._flat = 0 if improved else self._flat + 1
        self._latest[batch], self._lowest[batch] = loss, min(lowest, loss)
        return Pace(self._multiple, tolerance > 0 and self._flat >= limit * len(self._latest))


class Preconditioners:
    """The preconditioner of each batch of a party, computed in the first iteration on it.

    Args:
        model: the party's model.
        loss: the loss function that the training minimises (`securevfl.models.loss`).
        who: name of the party, which error messages state.
    """

    def __init__(self, model: Linear, loss: Loss, who: str) -> None:
        self._model = model
        self._loss = loss
        self._who = who
        self._preconditioners: dict[int, Floats] = {}

    def of(self, batch: Batch) -> Floats:
        """Return the preconditioner P (d, d) for the rows of a batch: the inverse of a bound on the curvature."""
        if batch.index not in self._preconditioners:
            model = self._model
            self._preconditioners[batch.index] = preconditioner_of_rows(
                [batch.X], model.gram, self._loss, model.decay, who=self._who
            )
        return self._preconditioners[batch.index]


def _linear(party: TrainingParty) -> Linear:
    assert isinstance(party.model, Linear), "BlockNewton.check has checked it"
    return party.model
