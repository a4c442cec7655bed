"""One job run twice: with its protocols, and with the ideal functionality in their place.

real    the job as it is; a party's view contains every byte that it received.
ideal   the same training with nothing hidden or encrypted. A party's view contains its declared output: its own
        gradients J^T g, or the sums of the other parties' outputs. Each message is replaced by random bytes of the same
        length, which the party could have drawn itself.

An attack that succeeds more often on the real view than on the ideal view has extracted information from the messages.
An attack that succeeds on both shows a disclosure by the declared output.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.audit.recording.party_record import Receipt
from securevfl.audit.recording.party_recording import Recording, record_parties
from securevfl.audit.recording.party_view import PartyView
from securevfl.audit.recording.replayed_defence import with_replayed_defence
from securevfl.audit.recording.replayed_draws import with_draws
from securevfl.data.party import Party, check_parties, register_of
from securevfl.data.schedule import Rows, Schedule
from securevfl.families import leak_kinds
from securevfl.job import Job
from securevfl.models.class_labels import find_classes
from securevfl.runtime.codec import Message
from securevfl.training.run import Run


class RealIdealPair:
    """The real and the ideal run of one job with one seed; each run starts when it is first used.

    All leaks (disclosures that a job must accept) are accepted, because the attacks are to show them, and no run stops
    early. `job` evaluates once, at the end of the training.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        parties: the parties with their tables.
        seed: seed of both runs.
        attacker: the passive party that attacks labels; by default the party without labels that has most columns.
        unprepared: the job and the parties before their tables were prepared, if they were.
    """

    def __init__(
        self,
        job: Job,
        parties: Sequence[Party],
        seed: int,
        *,
        attacker: str | None = None,
        unprepared: tuple[Job, Sequence[Party]] | None = None,
    ) -> None:
        self._changes: dict[str, Any] = {"seed": seed, "target": None, "patience": None, "accepts": [*leak_kinds()]}
        self._changes["optimizer"] = job.optimizer.without_early_stop()
        self.job = job.model_copy(update=self._changes | {"evaluate_every": 0})
        # an optimizer that may stop early evaluates after rounds that it chooses; the number of rounds before its first
        # evaluation, used as a fixed interval, yields about as many evaluations
        self._interval = job.evaluation_interval or min(job.optimizer.evaluation_rounds(job.epochs, 0), default=0)
        self._unprepared = (job, parties) if unprepared is None else unprepared
        self.parties = list(parties)
        self.seed = seed
        self.active, others = check_parties(parties)
        self.passives = [party for party in others if party.columns]
        self.attacker = attacker or max(self.passives, key=lambda party: (not party.active, party.X.shape[1])).name

    @cached_property
    def real_run(self) -> tuple[Run, Recording]:
        """The recorded run of the job as it is; the ideal run is compared with it."""
        return record_parties(self.job, self.parties)

    @cached_property
    def ideal_run(self) -> tuple[Run, Recording]:
        """The same training with nothing hidden, on the same data and with the same random draws.

        A party's output in this run is its declared output. The run replays each residual after the defence and
        the keys of random features, so that the two runs differ in their messages only.
        """
        run, recording = self.real_run
        ideal = self.job.family.ideal_job(self.job)
        if ideal.protocol.residual is not None:
            residual = with_replayed_defence(ideal.protocol.residual, outcomes=recording.defended_residuals)
            ideal = ideal.model_copy(update={"protocol": ideal.protocol.model_copy(update={"residual": residual})})
        return record_parties(with_draws(ideal, {name: part.state for name, part in run.parts.items()}), self.parties)

    @cached_property
    def evaluated_run(self) -> tuple[Run, Recording]:
        """The real run with all evaluations that the job asks for."""
        if not self._interval:
            return self.real_run
        return record_parties(self.job.model_copy(update={"evaluate_every": self._interval}), self.parties)

    @cached_property
    def bins_recording(self) -> Recording:
        """The recording of one epoch on unprepared tables; it contains the class counts of bins that parties learn."""
        job, parties = self._unprepared
        return record_parties(job.model_copy(update=self._changes | {"epochs": 1}), parties)[1]

    @cached_property
    def schedule(self) -> Schedule:
        """The batches of the training."""
        return self.job.schedule(register_of(self.parties))

    @cached_property
    def rows(self) -> dict[int, Rows]:
        """The rows of each batch, by its index in the schedule."""
        return {iteration.index: iteration.rows for iteration in self.schedule.iterations()}

    def real(self, name: str | None = None) -> PartyView:
        """Return a party's view of the real run; the attacker's if no name is given."""
        return self._view(*self.real_run, name or self.attacker)

    def ideal(self, name: str | None = None) -> PartyView:
        """Return a party's view of the ideal run; the attacker's if no name is given."""
        name = name or self.attacker
        noise = [Receipt(receipt.iteration, noise_like(receipt.message)) for receipt in self.real(name).receipts]
        return replace(self._view(*self.ideal_run, name), receipts=noise, events=[])

    def _view(self, run: Run, recording: Recording, name: str) -> PartyView:
        part, party = run.parts[name], next(party for party in self.parties if party.name == name)
        return PartyView(
            **vars(recording[name]),
            name=name,
            X=part.scaling(party.X),
            theta=self.job.family.final_weights(self.job, part.state, len(run.parts)),
            outputs=part.outputs,
            rows=self.rows,
            key=self.real_run[0].parts[name].state.get("key", b""),
        )

    @cached_property
    def labels(self) -> NDArray[np.intp]:
        """The true classes (m,), as numbers in the order of the classes; the positive one of two classes is 1.

        Labels of a regression are numbered from the smallest value on.
        """
        y, loss = np.asarray(self.active.y), self.job.model.loss
        classes = find_classes(self.active.name, loss, y, self.job.positive) if loss.classifies else np.unique(y)
        return (y[:, None] == classes).argmax(axis=1) if loss.classifies else np.searchsorted(classes, y)


def noise_like(message: Message) -> Message:
    """Return a message of the same type and size without content: byte strings are random, arrays are empty."""
    changed: dict[str, Any] = {}
    for name in message.__struct_fields__:
        value = changed[name] = getattr(message, name)
        if isinstance(value, bytes):
            changed[name] = os.urandom(len(value))
        elif isinstance(value, np.ndarray):
            changed[name] = np.empty((0,), value.dtype)
    return type(message)(**changed)
