"""The recording of a run: what every party did and received.

A *sum* adds the outputs of the parties, its *summands*, for one of them. A *defence* is noise that a party adds to
residuals.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from securevfl.audit.recording.party_record import OpenedGradient, PartyRecord, PhaseSum, Receipt, SumValues
from securevfl.audit.recording.protocol_record import ProtocolRecord
from securevfl.audit.recording.recorded_protocols import RecordedSum, recorded
from securevfl.audit.recording.replayed_defence import with_replayed_defence
from securevfl.base.arrays import Floats
from securevfl.data.party import Party, check_parties
from securevfl.job import Job
from securevfl.protocols.observations import (
    GradientLearned,
    IterationStarted,
    OthersSumLearned,
    OutputsPushed,
    PhasesLearned,
    SharedResidual,
    SumFinished,
)
from securevfl.protocols.residuals.base import ResidualProtocol
from securevfl.runtime.disclosure_gate import DisclosureRecord
from securevfl.runtime.observer import Event, Observer
from securevfl.training.run import Run
from securevfl.training.simulate import simulate


class Recording(defaultdict[str, PartyRecord], Observer):
    """The record of every party of a run, by name. It is thread-safe.

    `protocols` has the inputs and outputs of all sums of the run, evaluations included. `defended_residuals` has each
    residual after the defence.
    """

    def __init__(self) -> None:
        super().__init__(PartyRecord)
        self.protocols = ProtocolRecord()
        self.defended_residuals: list[Floats] = []
        self._lock = threading.Lock()

    def evaluation_sums(self, name: str) -> Floats:
        """Return the sums (rows, c) that a party collected in evaluations, or its summands, one after the other."""
        sums = enumerate(self._all_sums(name))
        return np.concatenate([values for index, values in sums if index not in self[name].training_sums])

    def _all_sums(self, name: str) -> list[Floats]:
        """Return all sums that a party collected; if it never collects, all summands that it contributed."""
        sums = self.protocols.sums
        return sums[name].totals if name in sums else self.protocols.parts[name]

    def __call__(self, event: Event) -> None:
        """Record a message that a party sent or received."""
        with self._lock:
            record = self[event.me]
            record.events.append(event)
            if event.direction == "recv":
                record.receipts.append(Receipt(len(record.batches) - 1, event.message))

    def note(self, me: str, fact: object) -> None:
        """Record a fact that a party's protocols note.

        Args:
            me: name of the party.
            fact: a note of `securevfl.protocols.observations`, or a disclosure; facts of other kinds are ignored.
        """
        with self._lock:
            record = self[me]
            iteration = len(record.batches) - 1
            match fact:
                case IterationStarted(batch):
                    record.batches.append(batch)
                case SumFinished(batch):
                    sums = self._all_sums(me)
                    record.training_sums.add(len(sums) - 1)
                    record.sums.append(SumValues(iteration, batch, sums[-1]))
                case GradientLearned(batch, J, gradient, group):
                    opened = OpenedGradient(iteration, batch, J.dense, gradient.reshape(J.dense.shape[1], -1))
                    (record.bin_counts if group == "bins" else record.opened_gradients).append(opened)
                case DisclosureRecord():
                    record.disclosures.append(fact)
                case SharedResidual(batch, words):
                    record.residual_shares.append(SumValues(iteration, batch, words.copy()))
                case OutputsPushed():
                    record.pushed.append(fact)
                case OthersSumLearned():
                    record.pulled_sums.append(fact)
                case PhasesLearned(block, bits, phases):
                    record.phase_sums.append(PhaseSum(iteration, block, bits, phases.copy()))


def with_recorders(
    job: Job, parties: Sequence[Party], record: ProtocolRecord, residual: ResidualProtocol | None
) -> Job:
    """Return the job with the residual protocol `residual`, and with a recorder in every sum.

    A job on secret shares is returned as it is, since it has neither sums nor residual protocols.
    """
    if job.protocol.family is not None:
        return job
    _, others = check_parties(parties)
    sums = recorded(RecordedSum, job.protocol.sum_for(sum(bool(party.columns) for party in others)), record)
    return job.model_copy(update={"protocol": job.protocol.model_copy(update={"sum": sums, "residual": residual})})


def record_parties(job: Job, parties: Sequence[Party]) -> tuple[Run, Recording]:
    """Run the job and record the actions and received messages of each party."""
    recording, residual = Recording(), job.protocol.residual
    if residual is not None:
        residual = with_replayed_defence(residual, on_outcome=recording.defended_residuals.append)
    run = simulate(with_recorders(job, parties, recording.protocols, residual), parties, observe=recording)
    # predictions with the model are not recorded
    parts = {name: replace(part, job=job.to_dict()) for name, part in run.parts.items()}
    return Run(job, parts), recording
