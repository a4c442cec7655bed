"""Training of a protocol family: how it creates participants, and what a run must know before the training.

A protocol family is one way to train a model together. A participant is the object that trains one party's part of the
model (`securevfl.families.participant`). Its state is everything from which it can resume; the model state is the part
of it that predictions need.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.data.schedule import Schedule
from securevfl.disclosure.counts import RunShape
from securevfl.families.facts import RunFacts
from securevfl.families.family_types import O
from securevfl.families.participant import Participant
from securevfl.families.run_files import RunFile
from securevfl.families.state import State
from securevfl.models.rounding_error import SumRounding
from securevfl.protocols.party_context import PartyContext


class FamilyTraining(ABC, Generic[O]):
    """How a protocol family trains: it creates one participant for each party.

    Attributes:
        run_files: the files that its participants write to the folder of a run; they write no others.
    """

    run_files: ClassVar[tuple[RunFile, ...]] = ()

    @abstractmethod
    def participant(self, job: O, context: PartyContext, columns: int, state: State | None) -> Participant:
        """Create the participant of one party. All parties do so at the same point: protocols may exchange keys.

        Args:
            job: the options of the training, on which all parties agree (`securevfl.job.Job`).
            context: the party's channel to the others, the roles of all parties, and the meter of its costs.
            columns: d, number of columns of the party.
            state: the state to resume from, or the model state to predict with; None to start a training.

        Returns:
            The participant.
        """

    def plan(self, job: O, schedule: Schedule, shape: RunShape) -> Any:
        """Compute the plan: values that a training derives from public sizes before it starts. None if there are none.

        Args:
            job: the options of the training, on which all parties agree (`securevfl.job.Job`).
            schedule: which rows are in which batch.
            shape: public sizes of the run: numbers of rows, batches, model outputs and columns of each party.

        Returns:
            The plan, which only this protocol family reads (`TrainingData.plan`).
        """
        return None

    def column_clip(self, job: O) -> float | None:
        """Return the absolute value at which scaled columns are clipped; None if they are not clipped."""
        return None

    def sum_rounding(self, job: O, rows: int, parties: int) -> SumRounding | None:
        """Return how the training rounds sums f of the parties' outputs at random.

        Args:
            job: the options of the training, on which all parties agree (`securevfl.job.Job`).
            rows: number of training rows.
            parties: number of parties.

        Returns:
            The rounding; None without rounding, or if coefficients are not reported with standard errors.
        """
        return None

    def resource_estimates(self, job: O, facts: RunFacts) -> list[str]:
        """Return lines that estimate a run's time and memory, or why it would be refused; empty if unknown."""
        return []

    def stored_bytes(self, job: O, facts: RunFacts, *, all_at_once: bool = False) -> int:
        """Estimate the precomputed material on disk.

        Args:
            job: the options of the training, on which all parties agree (`securevfl.job.Job`).
            facts: the facts known before the run.
            all_at_once: whether all material is computed before the run. Otherwise, used material is deleted.

        Returns:
            The largest number of bytes that a party's folder contains at a time.
        """
        return 0

    def drawn_secrets(self, state: State) -> State | None:
        """Return the random values, such as keys, that a participant drew before its training; None without any.

        Args:
            state: the state of the participant.

        Returns:
            The random values, or None if there are none.
        """
        return None

    def final_weights(self, job: O, state: State, parties: int) -> Floats:
        """Return the weights (d, c) that a party has stored after the training.

        Args:
            job: the options of the training, on which all parties agree (`securevfl.job.Job`).
            state: the model state of the party.
            parties: number of parties.

        Returns:
            The weights; an array (0, 1) for a party without weights.
        """
        return state.get("theta", np.zeros((0, 1)))
