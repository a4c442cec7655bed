"""Runs that record what every party did and received."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from securevfl.audit.recording.party_record import LearnedPhaseSum, Opening, PartyRecord, Receipt, Total
from securevfl.audit.recording.protocol_record import ProtocolRecord
from securevfl.audit.recording.recorded_protocols import RecordedSum, witnessed
from securevfl.audit.recording.replayed_defence import replayed
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
    """What the recorded parties did, by name. Each party writes from its own threads.

    `sums` holds every part and every sum of the run, those of evaluations too; `blurred` what a defence has made of
    each g.
    """

    def __init__(self) -> None:
        super().__init__(PartyRecord)
        self.sums, self.blurred, self._lock = ProtocolRecord(), list[Floats](), threading.Lock()

    def evaluated(self, name: str) -> Floats:
        """Return what this party collected in evaluations, or gave to them, one after the other (rows x c)."""
        every = enumerate(self._summed(name))
        return np.concatenate([values for place, values in every if place not in self[name].trained])

    def _summed(self, name: str) -> list[Floats]:
        """All that this party collected, or if it never does, gave to sums."""
        return self.sums.sums[name].totals if name in self.sums.sums else self.sums.parts[name]

    def __call__(self, event: Event) -> None:
        with self._lock:
            seen = self[event.me]
            seen.events.append(event)
            if event.direction == "recv":
                seen.receipts.append(Receipt(len(seen.visits) - 1, event.message))

    def note(self, me: str, fact: object) -> None:
        with self._lock:
            seen = self[me]
            visit = len(seen.visits) - 1
            match fact:
                case IterationStarted(index):
                    seen.visits.append(index)
                case SumFinished(index):
                    every = self._summed(me)
                    seen.trained.add(len(every) - 1)
                    seen.totals.append(Total(visit, index, every[-1]))
                case GradientLearned(index, J, gradient, group):
                    opened = Opening(visit, index, J.dense, gradient.reshape(J.dense.shape[1], -1))
                    (seen.bin_counts if group == "bins" else seen.opened_gradients).append(opened)
                case DisclosureRecord():
                    seen.disclosures.append(fact)
                case SharedResidual(index, words):
                    seen.shared.append(Total(visit, index, words.copy()))
                case OutputsPushed():
                    seen.pushed.append(fact)
                case OthersSumLearned():
                    seen.told.append(fact)
                case PhasesLearned(k, bits, phases):
                    seen.phases.append(LearnedPhaseSum(visit, k, bits, phases.copy()))


def watched(job: Job, parties: Sequence[Party], witness: ProtocolRecord, residual: ResidualProtocol | None) -> Job:
    """Return the job with this residual and a witness at every seat of its sums; itself on shares, which have none."""
    if job.protocol.family is not None:
        return job
    _, others = check_parties(parties)
    sums = witnessed(RecordedSum, job.protocol.sum_for(sum(bool(party.columns) for party in others)), witness)
    return job.model_copy(update={"protocol": job.protocol.model_copy(update={"sum": sums, "residual": residual})})


def record_parties(job: Job, parties: Sequence[Party]) -> tuple[Run, Recording]:
    """Run the job and write down what each party did and got."""
    tape, residual = Recording(), job.protocol.residual
    noting = None if residual is None else replayed(residual, note=tape.blurred.append)
    run = simulate(watched(job, parties, tape.sums, noting), parties, observe=tape)
    parts = {name: replace(part, job=job.to_dict()) for name, part in run.parts.items()}  # to predict without a witness
    return Run(job, parts), tape
