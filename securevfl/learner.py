"""What a party learns with, by the kind of its model: its weights, its sums, and how the parties predict together.

The same object trains (built empty) and predicts (built from a `Part`).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from securevfl.crypto.prg import KEY_BYTES
from securevfl.crypto.scheme import Floats
from securevfl.job import Job
from securevfl.models.kernel import Expansion, Frequencies, Kernel, KernelShare
from securevfl.models.linear import Linear, LinearModel
from securevfl.optim.base import Trainee
from securevfl.protocols.base import Agreement, Seat
from securevfl.protocols.link import ActiveLink, PassiveLink
from securevfl.protocols.phase_sums import PhaseSums
from securevfl.protocols.predict import predict_active, predict_passive

Table = Callable[[slice], Floats]  # this party's columns of a slice of some rows, scaled

ROWS = 4096  # rows of features that a kernel model holds at a time while it predicts


class Learner(ABC):
    """One party's side of a model."""

    rounds: int = 0  # exchanges of training so far, at the active party
    key: bytes = b""  # what this party's features are drawn from, if they are random

    @property
    @abstractmethod
    def theta(self) -> Floats:
        """This party's weights."""

    @abstractmethod
    def train(self, party: Trainee) -> None:
        """Runs the job's optimizer for this party's role."""

    @abstractmethod
    def decision(self, table: Table, rows: int, *, again: bool = False, batches: Sequence[slice] = ()) -> Floats | None:
        """f (rows x c) at the active party, None elsewhere.

        again: the same rows will be asked for later. batches: where the batches of the training are among the rows, if
        they are these rows.
        """

    def wants(self, batch: int) -> bool:
        """Whether it still needs the columns of this batch."""
        return True


class LinearLearner(Learner):
    """H_k = X_k theta_k, summed."""

    def __init__(self, job: Job, seat: Seat, columns: int, theta: Floats | None = None) -> None:
        assert isinstance(job.model, LinearModel)
        intercept = seat.me == seat.active
        self.model: Linear = job.model.build(columns, seat.outputs, intercept=intercept)
        if theta is not None:
            self.model.theta = theta
        self._job = job
        self._seat = seat
        self._sums = job.protocol.sum_for(len(seat.passives)).role(seat)
        self._link: ActiveLink | None = None

    @property
    def rounds(self) -> int:  # type: ignore[override]
        return self._link.rounds if self._link is not None else 0

    @property
    def theta(self) -> Floats:
        return self.model.theta

    def train(self, party: Trainee) -> None:
        residual, optimizer = self._job.protocol.residual, self._job.optimizer
        agreement = optimizer.agreement(self._job.model)
        if self._seat.me == self._seat.active:
            with ActiveLink(self._seat, self._sums, residual.active(self._seat, agreement)) as link:
                self._link = link
                optimizer.active(party, link)
        else:
            with PassiveLink(self._seat, self._sums, residual.passive(self._seat, agreement)) as passive:
                optimizer.passive(party, passive)

    def decision(self, table: Table, rows: int, *, again: bool = False, batches: Sequence[slice] = ()) -> Floats | None:
        def forward(block: slice) -> Floats:
            return self.model.forward(table(block))

        if self._seat.me == self._seat.active:
            return predict_active(self._sums, forward, rows, self._seat.outputs)
        predict_passive(self._sums, forward, rows)
        return None


class KernelLearner(Learner):
    """Random features of all parties' columns, coefficients at the workers (`securevfl.models.kernel`)."""

    def __init__(
        self,
        job: Job,
        seat: Seat,
        columns: int,
        workers: Sequence[str],
        *,
        key: bytes = b"",
        theta: Floats | None = None,
    ) -> None:
        assert isinstance(job.model, Kernel)
        self.key = key or os.urandom(KEY_BYTES)
        expansion = Expansion(job.model, theta) if seat.me in workers else None
        self.share = KernelShare(Frequencies(job.model, self.key, columns), expansion)
        sums = PhaseSums(job.protocol.sum_for(len(seat.passives)), seat, workers, bits=job.model.bits)
        self.sums = sums
        self._job = job
        self._seat = seat

    @property
    def rounds(self) -> int:  # type: ignore[override]
        return self.sums.rounds

    @property
    def theta(self) -> Floats:
        return self.share.theta

    def train(self, party: Trainee) -> None:
        seat, residual, optimizer = self._seat, self._job.protocol.residual, self._job.optimizer
        sums = self.sums.sums[seat.active]
        if seat.me == seat.active:
            optimizer.active(party, ActiveLink(seat, sums, residual.active(seat, Agreement()), self.sums))
        else:
            optimizer.passive(party, PassiveLink(seat, sums, residual.passive(seat, Agreement()), self.sums))

    def wants(self, batch: int) -> bool:
        return not self.share.knows(batch)

    def decision(self, table: Table, rows: int, *, again: bool = False, batches: Sequence[slice] = ()) -> Floats | None:
        blocks: dict[Hashable, slice] = dict(enumerate(batches)) or {
            ("asked", start): slice(start, min(start + ROWS, rows)) for start in range(0, rows, ROWS)
        }
        parts: list[Floats] = []
        for name, block in blocks.items():
            if not self.share.knows(name):
                self.share.exchange(self.sums, name, table(block))
            f = self.sums.total(self._seat.active, self.share.forward(name))
            if f is not None:
                parts.append(f)
            if not again and not batches:
                self.share.drop(name)
        return np.concatenate(parts) if parts else None


def make_learner(
    job: Job,
    seat: Seat,
    columns: int,
    workers: Sequence[str],
    *,
    key: bytes = b"",
    theta: Floats | None = None,
) -> Learner:
    """The one that fits the job's model; with `theta` (and `key`) of an earlier training if there was one.

    `workers` are the parties with labels, the active party first.
    """
    if isinstance(job.model, Kernel):
        return KernelLearner(job, seat, columns, workers, key=key, theta=theta)
    return LinearLearner(job, seat, columns, theta)
