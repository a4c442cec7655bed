"""Training by phases: random features of everyone's columns, kept where the labels are (FDSKL, Gu et al. 2020).

    every party l             x_l w_l on the circle, into a sum for each party with labels
    each party with labels    keeps the cosines, which are its features, and coefficients for them
    all                       f_l on a batch, into a sum for the one whose turn it is, which takes a step

One party or more have labels; the first of them leads. Nothing goes down. See
`securevfl.families.fdskl.kernel_model` for the features, `securevfl.families.fdskl.phase_sums` for the messages.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Hashable, Iterator
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from securevfl.base.arrays import Floats, RowSlices
from securevfl.base.roles import ACTIVE, COLLECTOR, CONTRIBUTOR, PASSIVE, Role, Roles
from securevfl.crypto.key_derivation import KEY_BYTES
from securevfl.data.schedule import Iteration
from securevfl.disclosure.counts import Disclosure, Sizes
from securevfl.families.base import J, Known, MessageProtocol, Method, Told
from securevfl.families.fdskl import phase_sums
from securevfl.families.fdskl.kernel_model import Expansion, Floats32, Frequencies, Kernel, KernelShare
from securevfl.families.fdskl.phase_sums import PhaseSums
from securevfl.families.player import BatchPlayer, Player, Round, State, TrainingData
from securevfl.families.sizes import scores
from securevfl.models.base import Model
from securevfl.optim.curvature import bound
from securevfl.optim.rules import Optimizer, Training
from securevfl.options import JobOptions
from securevfl.protocols.choice import Protocol
from securevfl.protocols.declared import Circle, Declared, recast
from securevfl.protocols.link import AskedRows
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.residuals.base import Batch
from securevfl.protocols.sums.base import DirectSum
from securevfl.protocols.sums.pairwise_sum import PairwiseSum
from securevfl.protocols.sums.tree_sum import TreeSum

PHASES_TELL = """\
M = {M} phases of every row: the sum of x_l w_l over the other parties, modulo a turn. Each
draws its w_l itself, so no system of equations leads to its columns. What no w hides is told:
the kernel, and so the distance, of any two rows in the other parties' columns together; where
phases seldom wrap (small gamma), these columns up to one unknown linear map, which as many known
rows as columns give away"""
ROWS = 4096  # rows of features that are held at a time while new rows are predicted


# FDSKL (Gu et al. 2020): doubly stochastic gradients for kernel models over vertically split data.
#
# A worker is a party with labels; each has features of its own and keeps their coefficients alpha. Workers take turns:
#
# 1. the next minibatch, in an order that all parties share, and the turn's worker a with its next block k of features,
#    in an order that is independent of the minibatches'. (Were the block tied to the minibatch, as by a seed of the
#    sample alone, a block would only ever be fitted on its own rows.)
# 2. the phases of the minibatch for all workers' features are summed up (Algorithms 1 and 3), once: a worker keeps
#    their cosines in 2 bytes each
# 3. f on the minibatch, the sum over workers, goes to a
# 4. a    g = df-loss at f,   alpha_k -= eta P_k (Phi_k^T g / n + l2 alpha_k)        (Algorithm 2)
#
# P_k = 1 is the paper's step. With `precondition`, P_k = (c Phi_k(R)^T Phi_k(R) / |R| + rho I)^-1 for the first SAMPLE
# rows R of the partition and c the largest curvature of the loss: the step along a feature no longer shrinks with what
# it shares with the others of its block. Dai et al. 2014 scale doubly stochastic gradients by a covariance too.
#
# `lr` is eta; where it decays, t counts passes over the data.


SAMPLE = 4096  # rows that preconditioners are made from


class FDSKL(Optimizer):
    """Step `lr`, constant or decaying; `precondition` with the ridge `rho`. Minibatches are the job's batches."""

    name: ClassVar[str] = "fdskl"
    method: ClassVar[str] = "phases"
    lr: float = Field(default=0.5, gt=0)
    """eta, the size of the first step."""
    precondition: bool = True
    """Divides each block's gradient by the curvature of its features, estimated on the first rows."""
    rho: float = Field(default=1.0, gt=0)
    """Ridge that is added to this curvature."""

    @property
    def label(self) -> str:
        return "FDSKL-p" if self.precondition else "FDSKL"

    def run(self, party: PhasesPlayer) -> Iterator[None]:
        """Run a party's side of the training, worker or not; yield whenever a round is over."""
        share, sums, own = party.share, party.sums, party.share.expansion
        sample = [party.batch(visit) for visit in party.data.first(SAMPLE)] if self.precondition else []
        for batch in sample:
            _exchange(share, sums, batch)  # 2
        preconditioners: dict[int, Floats32] = {}
        turns = {worker: blocks(share.model.blocks, party.seed, i) for i, worker in enumerate(sums.workers)}
        for t in range(party.start):
            next(turns[sums.workers[t % len(sums.workers)]])
        for t, batch in enumerate(party.batches(), party.start):  # 1
            _exchange(share, sums, batch)  # 2
            worker = sums.workers[t % len(sums.workers)]
            k = next(turns[worker])
            f = sums.total(worker, share.forward(batch.index), batch.index)  # 3
            if f is not None:
                assert own is not None, "only a worker has a turn"
                if self.precondition and k not in preconditioners:
                    preconditioners[k] = self._preconditioner(own, sample, k)
                g = party.residual(f, batch)
                self._step(own, batch, k, g, self.eta(batch.epoch, party.parties), preconditioners.get(k))  # 4
            yield

    def _step(self, own: Expansion, batch: Batch, k: int, g: Floats, eta: float, P: Floats32 | None) -> None:
        move = g[:, 0].astype(np.float32) @ own.phi(batch.index, k) / np.float32(len(g))
        move += np.float32(own.model.l2) * own.alpha[k]
        own.alpha[k] -= np.float32(eta) * (move if P is None else P @ move)

    def _preconditioner(self, own: Expansion, sample: list[Batch], k: int) -> Floats32:
        """P_k (D x D)."""
        D = own.model.block_size
        gram, rows = np.zeros((D, D)), 0
        for batch in sample:
            phi = own.phi(batch.index, k)
            gram += phi.T @ phi
            rows += len(phi)
        return np.linalg.inv(bound(own.model.loss) / rows * gram + self.rho * np.eye(D)).astype(np.float32)


def blocks(K: int, seed: int, worker: int) -> Iterator[int]:
    """Which block has its turn: all K of them in a new random order every time, the same at every party."""
    generator = np.random.default_rng([seed, 3, worker])
    while True:
        yield from generator.permutation(K).tolist()


def _exchange(share: KernelShare, sums: PhaseSums, batch: Batch) -> None:
    if not share.knows(batch.index):
        share.exchange(sums, batch.index, batch.X)


class PhasesJob(JobOptions, defer_build=True):
    """A job of phases: a kernel model by FDSKL."""

    model: Kernel
    optimizer: FDSKL


class Phases(Method[PhasesJob]):
    """Sums of phases to every party with labels, for kernel models by random features."""

    name: ClassVar[str] = "phases"
    options: ClassVar[type[JobOptions]] = PhasesJob
    brings: ClassVar[tuple[type[Model] | type[Training], ...]] = (Kernel, FDSKL)

    def check(self, job: JobOptions) -> None:
        if job.protocol.residual is not None:
            raise ValueError(f"optimizer {job.optimizer.name} sends no residual; leave protocol.residual out")
        if isinstance(job.optimizer, FDSKL) and job.optimizer.precondition and job.model.loss.curvature is None:
            raise ValueError(
                f"loss {job.model.loss.name} states no curvature, which preconditioners rest on; state it, or set "
                "optimizer.precondition = false"
            )
        if job.reshuffle:
            raise ValueError(f"optimizer {job.optimizer.name} keeps features by batch; set reshuffle = false")

    def admits(self, role: Role, *, leads: bool) -> bool:
        return role == ACTIVE or (role == PASSIVE and not leads)

    def examples(self) -> dict[str, dict[str, Any]]:
        own = {"model": Kernel(gamma=0.01, blocks=2, block_size=32), "optimizer": FDSKL()}
        return {
            "kernel tree": own | {"protocol": Protocol(sum=TreeSum())},
            "kernel direct": own | {"protocol": Protocol(sum=DirectSum())},
            "kernel pairwise": own | {"protocol": Protocol(sum=PairwiseSum())},
        }

    def declares(self, job: PhasesJob, roles: Roles) -> list[Declared]:
        found = []
        others = roles.others(roles.lead)
        for declared in (job.protocol.sum_for(len(others)).declares(others), phase_sums.declares()):
            found += recast(declared, _parts(roles), space=None if len(roles.having(ACTIVE)) > 1 else Circle)
        return found

    def counts(self, job: PhasesJob, sizes: Sizes) -> list[Disclosure]:
        """Scores alone: what phases tell has as many dimensions as there are from the first exchange on, and `tells`
        says it in words."""
        return scores(job, sizes)

    def protocols(self, job: PhasesJob, roles: Roles) -> list[MessageProtocol]:
        return [job.protocol.sum_for(len(roles.cast) - 1)]

    def title(self, job: PhasesJob, roles: Roles) -> str:
        return f"{job.protocol.sum_for(len(roles.cast) - 1).name} sum / no residual"

    def strength(self, job: PhasesJob) -> str:
        return "none on the way down, where nothing is sent"

    def tells(self, job: PhasesJob, roles: Roles, party: str, known: Known | None) -> list[Told]:
        if roles.role(party) != ACTIVE:
            return [("learns", "nothing")]
        labelled = len(roles.having(ACTIVE))
        whose = "the other's f" if labelled == 2 else "the sum of the others' f"
        leading = "f = sum_k H_k on the rows predicted, and messages marked output or plain"
        found = [("learns", leading if party == roles.lead else "f on its minibatches")]
        if labelled > 1:
            found.append(("learns", f"{whose} on the rows of its minibatches, which follows their labels"))
        found.append(("learns", PHASES_TELL.format(M=job.model.features)))
        return found

    def pooling(self, job: PhasesJob, roles: Roles) -> str:
        others = roles.others(roles.lead)
        return job.protocol.sum_for(len(others)).coalition(others, "the party with labels")

    def player(self, job: PhasesJob, context: PartyContext, columns: int, state: State | None) -> Player:
        return PhasesPlayer(job, context, columns, state)

    def drawn(self, state: State) -> State | None:
        return State(key=state["key"], theta=None)

    def ideal(self, job: J) -> J:
        return job.model_copy(update={"protocol": Protocol(sum=DirectSum()), "max_label_auc": None})


def _parts(roles: Roles) -> dict[Role, tuple[Role, ...]]:
    """Who plays which part in the sums: those with labels are told, and all others than the one told put in."""
    others = dict.fromkeys(roles.role(name) for name in reversed(roles.others(roles.lead)))
    return {COLLECTOR: (ACTIVE,), CONTRIBUTOR: tuple(others)}


class PhasesPlayer(BatchPlayer):
    """One party's random frequencies and, with labels, its coefficients and the features it keeps."""

    def __init__(self, job: PhasesJob, context: PartyContext, columns: int, state: State | None) -> None:
        super().__init__(job, context)
        self._optimizer = job.optimizer
        self._lead = context.roles.lead
        own = State(key=os.urandom(KEY_BYTES), theta=None, exchanges=0) if state is None else state
        workers = context.roles.having(ACTIVE)
        expansion = Expansion(job.model, own["theta"]) if context.me in workers else None
        self.share = KernelShare(Frequencies(job.model, own["key"], columns), expansion)
        sums = job.protocol.sum_for(len(context.parties) - 1)
        self.sums = PhaseSums(sums, context, workers, bits=job.model.bits)
        self._before = own.get("exchanges", 0)
        self._again = job.evaluation_interval > 0
        self._training: TrainingData | None = None

    @property
    def constant(self) -> bool:
        return self.share.expansion is None

    @property
    def exchanges(self) -> int:
        return int(self._before + self.sums.rounds)

    def train(self, data: TrainingData, start: int = 0) -> Generator[Round]:
        self.begin(data, start)
        self._training = data
        yield from self.rounds(self._optimizer.run(self))

    def batch(self, visit: Iteration) -> Batch:
        return self.data.batch(visit, columns=not self.share.knows(visit.index))

    def decision(self, rows: RowSlices, asked: AskedRows | None = None) -> Floats | None:
        data = self._training
        own = data is not None and rows is data.evaluated
        blocks = self._blocks(len(rows))
        if own and data is not None and not len(data.schedule.test):  # the batches, whose features are kept
            ends = np.cumsum([len(part) for part in data.schedule.partition(0)]).tolist()
            blocks = {
                index: slice(start, end) for index, (start, end) in enumerate(zip([0, *ends], ends, strict=False))
            }
        parts: list[Floats] = []
        for name, block in blocks.items():
            if not self.share.knows(name):
                self.share.exchange(self.sums, name, rows[block])
            f = self.sums.total(self._lead, self.share.forward(name))
            if f is not None:
                parts.append(f)
            if isinstance(name, tuple) and not (own and self._again):
                self.share.drop(name)
        return np.concatenate(parts) if parts else None

    def _blocks(self, rows: int) -> dict[Hashable, slice]:
        return {("asked", start): slice(start, min(start + ROWS, rows)) for start in range(0, rows, ROWS)}

    def state(self) -> State:
        return State(self.outcome(), exchanges=self.exchanges)

    def outcome(self) -> State:
        return State(key=self.share.frequencies.key, theta=self.share.theta)
