"""FDSKL (Gu et al. 2020): doubly stochastic gradients for kernel models over vertically split data.

A worker is a party with labels; each has features of its own and keeps their coefficients alpha. Workers take turns:

1. the next minibatch, in an order that all parties share, and the turn's worker a with its next block k of features,
   in an order that is independent of the minibatches'. (Were the block tied to the minibatch, as by a seed of the
   sample alone, a block would only ever be fitted on its own rows.)
2. the phases of the minibatch for all workers' features are summed up (Algorithms 1 and 3), once: a worker keeps
   their cosines in 2 bytes each
3. f on the minibatch, the sum over workers, goes to a
4. a    g = df-loss at f,   alpha_k -= eta P_k (Phi_k^T g / n + l2 alpha_k)        (Algorithm 2)

P_k = 1 is the paper's step. With `precondition`, P_k = (c Phi_k(R)^T Phi_k(R) / |R| + rho I)^-1 for the first SAMPLE
rows R of the partition and c the largest curvature of the loss: the step along a feature no longer shrinks with what
it shares with the others of its block. Dai et al. 2014 scale doubly stochastic gradients by a covariance too.

`lr` is eta; where it decays, t counts passes over the data.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field

from securevfl.base.arrays import Floats
from securevfl.families.fdskl.phase_sums import PhaseSums
from securevfl.families.fdskl.random_features import Floats32, KernelExpansion, KernelModelPart
from securevfl.optim.curvature import curvature_bound
from securevfl.optim.optimizer import Optimizer
from securevfl.protocols.residuals.base import Batch

if TYPE_CHECKING:
    from securevfl.families.fdskl.fdskl_participant import PhasesParticipant

PRECONDITIONER_ROWS = 4096  # rows that preconditioners are made from


class FDSKL(Optimizer):
    """Step `lr`, constant or decaying; `precondition` with the ridge `rho`. Minibatches are the job's batches."""

    name: ClassVar[str] = "fdskl"
    family: ClassVar[str] = "phases"
    lr: float = Field(default=0.5, gt=0)
    """eta, the size of the first step."""
    precondition: bool = True
    """Divides each block's gradient by the curvature of its features, estimated on the first rows."""
    rho: float = Field(default=1.0, gt=0)
    """Ridge that is added to this curvature."""

    @property
    def label(self) -> str:
        return "FDSKL-p" if self.precondition else "FDSKL"

    def run(self, party: PhasesParticipant) -> Iterator[None]:
        """Run a party's side of the training, worker or not; yield whenever a round is over."""
        share, sums, own = party.share, party.sums, party.share.expansion
        sample = [party.batch(visit) for visit in party.data.first(PRECONDITIONER_ROWS)] if self.precondition else []
        for batch in sample:
            _exchange(share, sums, batch)  # 2
        preconditioners: dict[int, Floats32] = {}
        turns = {worker: block_order(share.model.blocks, party.seed, i) for i, worker in enumerate(sums.workers)}
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

    def _step(self, own: KernelExpansion, batch: Batch, k: int, g: Floats, eta: float, P: Floats32 | None) -> None:
        move = g[:, 0].astype(np.float32) @ own.phi(batch.index, k) / np.float32(len(g))
        move += np.float32(own.model.l2) * own.alpha[k]
        own.alpha[k] -= np.float32(eta) * (move if P is None else P @ move)

    def _preconditioner(self, own: KernelExpansion, sample: list[Batch], k: int) -> Floats32:
        """P_k (D x D)."""
        D = own.model.block_size
        gram, rows = np.zeros((D, D)), 0
        for batch in sample:
            phi = own.phi(batch.index, k)
            gram += phi.T @ phi
            rows += len(phi)
        return np.linalg.inv(curvature_bound(own.model.loss) / rows * gram + self.rho * np.eye(D)).astype(np.float32)


def block_order(K: int, seed: int, worker: int) -> Iterator[int]:
    """Which block has its turn: all K of them in a new random order every time, the same at every party."""
    generator = np.random.default_rng([seed, 3, worker])
    while True:
        yield from generator.permutation(K).tolist()


def _exchange(share: KernelModelPart, sums: PhaseSums, batch: Batch) -> None:
    if not share.knows(batch.index):
        share.exchange(sums, batch.index, batch.X)
