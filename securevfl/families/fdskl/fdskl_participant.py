"""One party of a training by sums of phases (FDSKL; see `securevfl.families.fdskl.fdskl_family`).

A worker is a party with labels: it caches random features of all parties' columns and stores their coefficients.
"""

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

PREDICTION_BLOCK_ROWS = 4096  # number of rows whose features are in memory at a time in predictions


class PhasesParticipant(BatchParticipant):
    """One party's random frequencies and, with labels, its coefficients and cached features.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
        columns: d, number of columns of this party.
        state: the state to resume from, or the model state to predict with; None to start a training.
    """

    def __init__(self, job: PhasesJob, context: PartyContext, columns: int, state: State | None) -> None:
        super().__init__(job, context)
        self._optimizer = job.optimizer
        self._lead = context.roles.lead
        stored = State(key=os.urandom(SYMMETRIC_KEY_BYTES), theta=None, exchanges=0) if state is None else state
        workers = context.roles.with_role(ACTIVE)
        expansion = KernelExpansion(job.model, stored["theta"]) if context.me in workers else None
        self.part = KernelModelPart(RandomFrequencies(job.model, stored["key"], columns), expansion)
        sums = job.protocol.sum_for(len(context.parties) - 1)
        self.sums = PhaseSums(sums, context, workers, bits=job.model.bits)
        self._exchanges_before = stored.get("exchanges", 0)
        self._evaluates_again = job.evaluation_interval > 0
        self._training: TrainingData | None = None

    @property
    def state_fits_any_round(self) -> bool:
        """Whether the state never changes, because this party has no labels and so no coefficients."""
        return self.part.expansion is None

    @property
    def exchanges(self) -> int:
        """Number of exchanges so far, including those before a resume."""
        return int(self._exchanges_before + self.sums.rounds)

    def train(self, data: TrainingData, start: int = 0) -> Generator[Round]:
        """Train by FDSKL, and yield after every round."""
        self.begin(data, start)
        self._training = data
        yield from self.rounds(self._optimizer.run(self))

    def batch(self, iteration: Iteration) -> Batch:
        """Return this party's rows of a batch, without columns if the sums of their phases are cached."""
        return self.data.batch(iteration, columns=not self.part.knows(iteration.index))

    def model_outputs(self, rows: RowSlices, request: RowsToScore | None = None) -> Floats | None:
        """Compute the model outputs f (m, 1); the leading party receives them, all others return None."""
        data = self._training
        evaluates = data is not None and rows is data.evaluated
        blocks = self._blocks(len(rows))
        if evaluates and data is not None and not len(data.schedule.test):
            # the evaluated rows are those of the batches, so their features are cached
            ends = np.cumsum([len(batch) for batch in data.schedule.partition(0)]).tolist()
            blocks = {
                index: slice(start, end) for index, (start, end) in enumerate(zip([0, *ends], ends, strict=False))
            }
        outputs: list[Floats] = []
        for name, block in blocks.items():
            if not self.part.knows(name):
                self.part.exchange(self.sums, name, rows[block])
            f = self.sums.total(self._lead, self.part.forward(name))
            if f is not None:
                outputs.append(f)
            if isinstance(name, tuple) and not (evaluates and self._evaluates_again):
                self.part.drop(name)
        return np.concatenate(outputs) if outputs else None

    def _blocks(self, rows: int) -> dict[Hashable, slice]:
        """Return the blocks of rows that are predicted together, by the name under which they are cached."""
        return {
            ("asked", start): slice(start, min(start + PREDICTION_BLOCK_ROWS, rows))
            for start in range(0, rows, PREDICTION_BLOCK_ROWS)
        }

    def state(self) -> State:
        """Return the values for a checkpoint: those of the model, and the number of exchanges with other parties."""
        return State(self.model_state(), exchanges=self.exchanges)

    def model_state(self) -> State:
        """Return the values for a model file: the key that determines the random features, and their coefficients."""
        return State(key=self.part.frequencies.key, theta=self.part.theta)
