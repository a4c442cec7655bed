"""FedBCD (Liu et al. 2019): block coordinate descent with Q local steps for each exchange.

The active party has the labels, passive parties have none. In an exchange, passive parties send their outputs, and the
active party sends g, the residual (derivative of the loss by the sum of outputs).

    parallel     all parties take their Q steps at once, with the same exchange (FedBCD-p, Algorithm 1)
    sequential   the active party first, then each passive party in turn, each with a new exchange (FedBCD-s); one pass
                 over K parties takes K - 1 exchanges
    FedPBCD      parallel, with a proximal term: the gradient of each local step includes
                 mu * (theta - theta at the exchange) for the weights theta
    FedSGD       Q = 1

Local steps use an update rule (`rule`). In local steps, parties use the others' outputs as exchanged, and passive
parties g as exchanged; the active party computes g again with its new weights (section 3). An interrupted run resumes
in another session, from the states that its checkpoints have stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from securevfl.base.arrays import Floats
from securevfl.models.base import Model
from securevfl.models.block import Block
from securevfl.optim.curvature_steps import CurvatureSteps
from securevfl.optim.proximal import Proximal
from securevfl.optim.rounds import RoundsOptimizer, TrainingParty
from securevfl.optim.rules import Rule
from securevfl.protocols.link import ActiveLink, PassiveLink
from securevfl.protocols.residuals.base import Batch, Reply


class FedBCD(RoundsOptimizer):
    """Block coordinate descent with `local_steps` local steps per round, all parties at once or in turn."""

    name: ClassVar[str] = "fedbcd"
    own_size: ClassVar[bool] = True

    lr: float | None = Field(default=None, gt=0, le=1e12)
    """eta, the first step size. Default for linear models: each party computes it from the curvature of its columns."""
    local_steps: int = Field(default=5, ge=1, le=10_000)
    """Q, the number of steps that each party takes for one exchange."""
    mode: Literal["parallel", "sequential"] = "parallel"
    """Whether parties update at once ("parallel") or in turn; in turn, sums reveal the outputs of single parties."""

    def check(self, model: Model) -> None:
        """Raise ValueError if no step size is set and none can be computed."""
        if self.lr is None and not (model.by_column and model.loss.curvature is not None and self.rule.linear):
            raise ValueError(
                "optimizer.lr: is missing; add it, because a step size can only be computed for a linear model whose "
                "loss has a curvature bound, with a linear rule (sgd, momentum)"
            )

    def init_state(self, model: Block, state: Mapping[str, Any] | None) -> Any:
        """Return the optimizer's state before the first round, or the stored state of an earlier session."""
        return super().init_state(model, state) if self.lr is not None else CurvatureSteps(self.update, model, state)

    @property
    def label(self) -> str:
        """The optimizer's name in tables of costs."""
        return self.labelled("FedBCD-p" if self.mode == "parallel" else "FedBCD-s")

    @property
    def steps(self) -> int:
        """Q, the number of local steps per round."""
        return self.local_steps

    def receivers(self, passives: Iterable[str]) -> list[tuple[str, ...]]:
        """Return, for each exchange of a pass over all parties, the passive parties that receive its residual."""
        return [tuple(passives)] if self.mode == "parallel" else [(name,) for name in passives]

    def exchanges(self, passives: Sequence[str]) -> int:
        """Return the number of exchanges in one iteration."""
        return len(self.receivers(passives))

    def active(self, party: TrainingParty, link: ActiveLink) -> Iterator[None]:
        """Run the active party's rounds, and yield after each."""
        for t, batch in enumerate(party.batches(), party.start):
            for exchange, passives in enumerate(self.receivers(link.passives)):
                others = link.sum(batch)
                if exchange == 0:
                    self._active_steps(party, link, others, batch, t)
                if self.mode == "sequential":
                    g = party.residual(party.model.combine(batch.X, others), batch)
                    link.publish(party.model.output_gradient(batch.X, others, g), batch, to=passives)
            yield

    def passive(self, party: TrainingParty, link: PassiveLink) -> Iterator[None]:
        """Run a passive party's rounds, and yield after each."""
        for t, batch in enumerate(party.batches(), party.start):
            for passives in self.receivers(link.passives):
                link.contribute(party.model.forward(batch.X), batch)
                if link.me in passives:
                    self._passive_steps(party, link.reply(), batch, t)
            yield

    def _active_steps(self, party: TrainingParty, link: ActiveLink, others: Floats, batch: Batch, t: int) -> None:
        party.updater.begin()
        for q in range(self.steps):
            g = party.residual(party.model.combine(batch.X, others), batch)
            if q == 0 and self.mode == "parallel":
                link.publish(party.model.output_gradient(batch.X, others, g), batch)
            self._step(party, party.model.gradient(batch.X, others, g), batch, t)

    def _passive_steps(self, party: TrainingParty, reply: Reply, batch: Batch, t: int) -> None:
        party.updater.begin()
        for _ in range(self.steps):
            self._step(party, reply.gradient(party.model, batch), batch, t)

    def _step(self, party: TrainingParty, gradient: Floats, batch: Batch, t: int) -> None:
        updater, moving = party.updater, party.parties if self.mode == "parallel" else 1
        if isinstance(updater, CurvatureSteps):
            eta = updater.size(batch, party.loss, steps=self.steps, moving=moving) * self.shrunk(t, party.parties)
        else:
            eta = self.eta(t, party.parties)
        updater.step(gradient / len(batch.X), eta)


class FedSGD(FedBCD):
    """FedBCD with one local step per round, by all parties at once."""

    name: ClassVar[str] = "fedsgd"
    local_steps: Literal[1] = 1
    """Always 1."""
    mode: Literal["parallel"] = "parallel"
    """All parties update at once."""

    @property
    def label(self) -> str:
        """The optimizer's name in tables of costs."""
        return self.labelled("FedSGD")


class FedPBCD(FedBCD):
    """FedBCD-p with a proximal term (FedBCD 2019, eq. 11)."""

    name: ClassVar[str] = "fedpbcd"
    mode: Literal["parallel"] = "parallel"
    """All parties update at once."""
    mu: float = Field(gt=0, le=1e12)
    """Strength of the proximal term, which pulls the weights towards those at the exchange."""

    @property
    def label(self) -> str:
        """The optimizer's name in tables of costs."""
        return self.labelled("FedPBCD-p")

    @property
    def update(self) -> Rule:
        """The chosen rule with the proximal term."""
        return Proximal(mu=self.mu, rule=self.rule)
