"""One party of a training by phases."""

from __future__ import annotations

import os
from collections.abc import Generator, Hashable

import numpy as np

from securevfl.base.arrays import Floats, RowSlices
from securevfl.base.roles import ACTIVE
from securevfl.crypto.key_derivation import SYMMETRIC_KEY_BYTES
from securevfl.data.schedule import Iteration
from securevfl.families.batch_participant import BatchParticipant
from securevfl.families.fdskl.fdskl_job import PhasesJob
from securevfl.families.fdskl.phase_sums import PhaseSums
from securevfl.families.fdskl.random_features import KernelExpansion, KernelModelPart, RandomFrequencies
from securevfl.families.participant import Round
from securevfl.families.state import State
from securevfl.families.training_data import TrainingData
from securevfl.protocols.joint_prediction import RowsToScore
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.residuals.base import Batch

PREDICTION_BLOCK_ROWS = 4096  # rows of features that are held at a time while new rows are predicted


class PhasesParticipant(BatchParticipant):
    """One party's random frequencies and, with labels, its coefficients and the features it keeps."""

    def __init__(self, job: PhasesJob, context: PartyContext, columns: int, state: State | None) -> None:
        super().__init__(job, context)
        self._optimizer = job.optimizer
        self._lead = context.roles.lead
        own = State(key=os.urandom(SYMMETRIC_KEY_BYTES), theta=None, exchanges=0) if state is None else state
        workers = context.roles.with_role(ACTIVE)
        expansion = KernelExpansion(job.model, own["theta"]) if context.me in workers else None
        self.share = KernelModelPart(RandomFrequencies(job.model, own["key"], columns), expansion)
        sums = job.protocol.sum_for(len(context.parties) - 1)
        self.sums = PhaseSums(sums, context, workers, bits=job.model.bits)
        self._before = own.get("exchanges", 0)
        self._again = job.evaluation_interval > 0
        self._training: TrainingData | None = None

    @property
    def state_fits_any_round(self) -> bool:
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

    def model_outputs(self, rows: RowSlices, asked: RowsToScore | None = None) -> Floats | None:
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
        return {
            ("asked", start): slice(start, min(start + PREDICTION_BLOCK_ROWS, rows))
            for start in range(0, rows, PREDICTION_BLOCK_ROWS)
        }

    def state(self) -> State:
        return State(self.model_state(), exchanges=self.exchanges)

    def model_state(self) -> State:
        return State(key=self.share.frequencies.key, theta=self.share.theta)
