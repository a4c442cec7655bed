"""FedBCD (Liu et al. 2019): block coordinate descent with Q local steps on one exchange.

parallel     all parties take their Q steps at once, on the same exchange (FedBCD-p, Algorithm 1)
sequential   the active party first, then each passive party in turn, on a fresh exchange (FedBCD-s); with K parties
             one pass over all of them takes K - 1 exchanges
FedPBCD      parallel with a proximal term: each local step is also pulled back by mu (theta - theta at the exchange)
FedSGD       Q = 1

Local steps go by an update rule (`rule`), gradient descent unless another is named.

In the local steps the other parties' forward outputs and, at a passive party, g stay as they were exchanged; the
active party renews g with its own weights (section 3).
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
from securevfl.optim.rounds import Learner, RoundsOptimizer
from securevfl.optim.rules import Rule
from securevfl.protocols.link import ActiveLink, PassiveLink
from securevfl.protocols.residuals.base import Batch, Reply


class FedBCD(RoundsOptimizer):
    """Q = `local_steps` local steps a round, all parties at once or in turn."""

    name: ClassVar[str] = "fedbcd"
    own_size: ClassVar[bool] = True

    lr: float | None = Field(default=None, gt=0)
    """eta, the size of the first step; without, each party's own by the curvature of its columns (linear models)."""
    local_steps: int = Field(default=5, ge=1)
    """Q, steps that each party takes on one exchange."""
    mode: Literal["parallel", "sequential"] = "parallel"
    """All parties move at once, or one after the other; in turn, single parts show in the sums."""

    def check(self, model: Model) -> None:
        if self.lr is None and not (model.by_column and model.loss.curvature is not None and self.rule.linear):
            raise ValueError(
                "optimizer.lr: is missing; add it, as steps follow from the curvature of columns in a linear model "
                "whose loss states one, by a rule that is linear (sgd, momentum)"
            )

    def init_state(self, model: Block, state: Mapping[str, Any] | None) -> Any:
        return super().init_state(model, state) if self.lr is not None else CurvatureSteps(self.update, model, state)

    @property
    def label(self) -> str:
        return self.labelled("FedBCD-p" if self.mode == "parallel" else "FedBCD-s")

    @property
    def steps(self) -> int:
        return self.local_steps

    def turns(self, passives: Iterable[str]) -> list[tuple[str, ...]]:
        """Which passive parties answer to each exchange of a pass."""
        return [tuple(passives)] if self.mode == "parallel" else [(name,) for name in passives]

    def exchanges(self, passives: Sequence[str]) -> int:
        return len(self.turns(passives))

    def active(self, party: Learner, link: ActiveLink) -> Iterator[None]:
        for t, batch in enumerate(party.batches(), party.start):
            for turn, passives in enumerate(self.turns(link.passives)):
                others = link.sum(batch)
                if turn == 0:
                    self._active_steps(party, link, others, batch, t)
                if self.mode == "sequential":
                    g = party.residual(party.model.combine(batch.X, others), batch)
                    link.publish(party.model.output_gradient(batch.X, others, g), batch, to=passives)
            yield

    def passive(self, party: Learner, link: PassiveLink) -> Iterator[None]:
        for t, batch in enumerate(party.batches(), party.start):
            for passives in self.turns(link.passives):
                link.contribute(party.model.forward(batch.X), batch)
                if link.me in passives:
                    self._passive_steps(party, link.reply(), batch, t)
            yield

    def _active_steps(self, party: Learner, link: ActiveLink, others: Floats, batch: Batch, t: int) -> None:
        party.updater.begin()
        for q in range(self.steps):
            g = party.residual(party.model.combine(batch.X, others), batch)
            if q == 0 and self.mode == "parallel":
                link.publish(party.model.output_gradient(batch.X, others, g), batch)
            self._step(party, party.model.gradient(batch.X, others, g), batch, t)

    def _passive_steps(self, party: Learner, reply: Reply, batch: Batch, t: int) -> None:
        party.updater.begin()
        for _ in range(self.steps):
            self._step(party, reply.gradient(party.model, batch), batch, t)

    def _step(self, party: Learner, gradient: Floats, batch: Batch, t: int) -> None:
        updater, moving = party.updater, party.parties if self.mode == "parallel" else 1
        if isinstance(updater, CurvatureSteps):
            eta = updater.size(batch, party.loss, steps=self.steps, moving=moving) * self.shrunk(t, party.parties)
        else:
            eta = self.eta(t, party.parties)
        updater.step(gradient / len(batch.X), eta)


class FedSGD(FedBCD):
    """FedBCD with one local step a round, taken by all parties at once."""

    name: ClassVar[str] = "fedsgd"
    local_steps: Literal[1] = 1
    """Q is 1 here."""
    mode: Literal["parallel"] = "parallel"
    """All parties move at once."""

    @property
    def label(self) -> str:
        return self.labelled("FedSGD")


class FedPBCD(FedBCD):
    """FedBCD-p with the proximal weight `mu` (FedBCD 2019, eq. 11)."""

    name: ClassVar[str] = "fedpbcd"
    mode: Literal["parallel"] = "parallel"
    """All parties move at once."""
    mu: float = Field(gt=0)
    """Weight of the proximal term, which holds local steps to where the exchange began."""

    @property
    def label(self) -> str:
        return self.labelled("FedPBCD-p")

    @property
    def update(self) -> Rule:
        return Proximal(mu=self.mu, rule=self.rule)
