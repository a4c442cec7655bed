"""FDSKL (Gu et al. 2020): doubly stochastic gradients for kernel models over vertically split data.

A worker is a party with labels. It has random features in K blocks of D, with coefficients alpha. Workers take turns:
1. The next batch is selected, in an order that all parties share. The current worker selects its next block k of
   features in an independent order, because otherwise a block would only ever be fitted on the same rows.
2. The *phases* (angles) of the batch are summed for all workers' features (Algorithms 1 and 3), unless they are cached.
3. The worker receives f on the batch, the sum over workers of their features Phi times coefficients.
4. The worker computes g, the derivative of the loss by f, and updates (Algorithm 2)
   alpha_k -= eta * P_k (Phi_k^T g / n + l2 * alpha_k)             eta: step size `lr`
P_k = 1 is the paper's step. With `precondition`, P_k = (c * Phi_k(R)^T Phi_k(R) / |R| + rho * I)^-1, with the first
PRECONDITIONER_ROWS training rows R and the largest curvature c of the loss. Comments refer to these steps by number.
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

PRECONDITIONER_ROWS = 4096  # number of training rows, the first ones, from which preconditioners are computed


class FDSKL(Optimizer):
    """Stochastic gradient descent on random batches and random blocks of features, with step size `lr`."""

    name: ClassVar[str] = "fdskl"
    family: ClassVar[str] = "phases"
    lr: float = Field(default=0.5, gt=0, le=1e12)
    """eta, the size of the first step."""
    precondition: bool = True
    """Divide each block's gradient by the curvature of its features, estimated on the first rows."""
    rho: float = Field(default=1.0, gt=0, le=1e12)
    """Ridge that `precondition` adds to the curvature."""

    @property
    def label(self) -> str:
        """The optimizer's name in a cost table."""
        return "FDSKL-p" if self.precondition else "FDSKL"

    def run(self, party: PhasesParticipant) -> Iterator[None]:
        """Run a party's side of the training, and yield after every round."""
        part, sums, expansion = party.part, party.sums, party.part.expansion
        sample: list[Batch] = []
        if self.precondition:
            sample = [party.batch(iteration) for iteration in party.data.first_batches(PRECONDITIONER_ROWS)]
        for batch in sample:
            _exchange(part, sums, batch)  # step 2
        preconditioners: dict[int, Floats32] = {}
        orders = {worker: block_order(part.model.blocks, party.seed, i) for i, worker in enumerate(sums.workers)}
        for t in range(party.start):
            next(orders[sums.workers[t % len(sums.workers)]])
        for t, batch in enumerate(party.batches(), party.start):  # step 1
            _exchange(part, sums, batch)  # step 2
            worker = sums.workers[t % len(sums.workers)]
            k = next(orders[worker])
            f = sums.total(worker, part.forward(batch.index), batch.index)  # step 3
            if f is not None:
                assert expansion is not None, "only a worker receives f"
                if self.precondition and k not in preconditioners:
                    preconditioners[k] = self._preconditioner(expansion, sample, k)
                g = party.residual(f, batch)
                eta = self.eta(batch.epoch, party.parties)
                self._step(expansion, batch, k, g, eta, preconditioners.get(k))  # step 4
            yield

    def _step(
        self, expansion: KernelExpansion, batch: Batch, k: int, g: Floats, eta: float, P: Floats32 | None
    ) -> None:
        """Update the coefficients of the k-th block of random features."""
        gradient = g[:, 0].astype(np.float32) @ expansion.phi(batch.index, k) / np.float32(len(g))
        gradient += np.float32(expansion.model.l2) * expansion.alpha[k]
        expansion.alpha[k] -= np.float32(eta) * (gradient if P is None else P @ gradient)

    def _preconditioner(self, expansion: KernelExpansion, sample: list[Batch], k: int) -> Floats32:
        """Return the preconditioner P_k (D, D) of block k."""
        D = expansion.model.block_size
        gram, rows = np.zeros((D, D)), 0
        for batch in sample:
            phi = expansion.phi(batch.index, k)
            gram += phi.T @ phi
            rows += len(phi)
        return np.linalg.inv(curvature_bound(expansion.model.loss) / rows * gram + self.rho * np.eye(D)).astype(
            np.float32
        )


def block_order(K: int, seed: int, worker: int) -> Iterator[int]:
    """Yield numbers of the worker's blocks without end: all K in a random order, then in another one, and so on."""
    generator = np.random.default_rng([seed, 3, worker])
    while True:
        yield from generator.permutation(K).tolist()


def _exchange(part: KernelModelPart, sums: PhaseSums, batch: Batch) -> None:
    if not part.knows(batch.index):
        part.exchange(sums, batch.index, batch.X)
