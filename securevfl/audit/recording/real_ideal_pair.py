"""One job run twice: with its protocols, and with the ideal functionality in their place."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from securevfl.audit.recording.party_record import Receipt
from securevfl.audit.recording.party_recording import Recording, record_parties
from securevfl.audit.recording.party_view import PartyView
from securevfl.audit.recording.replayed_defence import replayed
from securevfl.data.party import Party, check_parties, register_of
from securevfl.data.schedule import Rows, Schedule
from securevfl.families import leak_kinds
from securevfl.families.family import Family
from securevfl.families.participant import Participant
from securevfl.families.state import State
from securevfl.job import Job
from securevfl.protocols.party_context import PartyContext
from securevfl.runtime.codec import Message
from securevfl.training.run import Run


@contextmanager
def drawing_from(job: Job, run: Run) -> Iterator[None]:
    """While the block runs, every party starts from what it has drawn for itself in another run of the job."""
    family = type(job.family)
    make = family.participant

    def start(self: Family[Any], job: Job, context: PartyContext, columns: int, state: State | None) -> Participant:
        drawn = self.drawn_secrets(run.parts[context.me].state) if state is None else state
        return make(self, job, context, columns, drawn)

    with mock.patch.object(family, "participant", start):
        yield


class RealIdealPair:
    """One job with one seed, run as it stands and as its ideal; each run is made once, when it is first asked for.

    All leaks are accepted, as what they tell is to be seen, and no run ends early. `job` evaluates at the end only.
    """

    def __init__(
        self,
        job: Job,
        parties: Sequence[Party],
        seed: int,
        *,
        attacker: str | None = None,
        asked: tuple[Job, Sequence[Party]] | None = None,
    ) -> None:
        """`attacker` is the passive party that attacks labels: the one without any with the most columns if None.

        asked: the job and the tables before they were prepared, if that was done.
        """
        self._plain = {"seed": seed, "target": None, "patience": None, "accepts": [*leak_kinds()]}
        self.job = job.model_copy(update=self._plain | {"evaluate_every": 0})
        self._interval = job.evaluation_interval
        self._asked = (job, parties) if asked is None else asked
        self.parties = list(parties)
        self.seed = seed
        self.active, others = check_parties(parties)
        self.passives = [party for party in others if party.columns]
        self.attacker = attacker or max(self.passives, key=lambda party: (not party.active, party.X.shape[1])).name

    @cached_property
    def real_run(self) -> tuple[Run, Recording]:
        return record_parties(self.job, self.parties)

    @cached_property
    def ideal_run(self) -> tuple[Run, Recording]:
        """The same training with nothing hidden, from the same data and draws as the real one.

        What a party is handed by it is its declared output. So that the two runs differ by messages alone, it takes
        over what the real one has drawn at random: what a defence has made of g, and the keys of random features.
        """
        run, tape = self.real_run
        ideal = self.job.family.ideal_job(self.job)
        if ideal.protocol.residual is not None:
            residual = replayed(ideal.protocol.residual, outcomes=tape.blurred)
            ideal = ideal.model_copy(update={"protocol": ideal.protocol.model_copy(update={"residual": residual})})
        with drawing_from(self.job, run):
            return record_parties(ideal, self.parties)

    @cached_property
    def evaluated_run(self) -> tuple[Run, Recording]:
        """`real_run` with all evaluations that the job asks for."""
        if not self._interval:
            return self.real_run
        return record_parties(self.job.model_copy(update={"evaluate_every": self._interval}), self.parties)

    @cached_property
    def bins_recording(self) -> Recording:
        """What parties were told of classes in bins, in a run of one epoch that prepares its tables."""
        job, parties = self._asked
        return record_parties(job.model_copy(update=self._plain | {"epochs": 1}), parties)[1]

    @cached_property
    def schedule(self) -> Schedule:
        return self.job.schedule(register_of(self.parties))

    @cached_property
    def rows(self) -> dict[int, Rows]:
        """The rows of each batch, by its index in the schedule."""
        return {visit.index: visit.rows for visit in self.schedule.iterations()}

    def real(self, name: str | None = None) -> PartyView:
        """Return the view of this party (the attacker if None) in the job as it stands."""
        return self._view(*self.real_run, name or self.attacker)

    def ideal(self, name: str | None = None) -> PartyView:
        """Return what the party (the attacker if None) could hold from its declared output alone."""
        name = name or self.attacker
        stand_ins = [Receipt(receipt.visit, noise_like(receipt.message)) for receipt in self.real(name).receipts]
        return replace(self._view(*self.ideal_run, name), receipts=stand_ins, events=[])

    def _view(self, run: Run, tape: Recording, name: str) -> PartyView:
        part, party = run.parts[name], next(party for party in self.parties if party.name == name)
        return PartyView(
            **vars(tape[name]),
            name=name,
            X=part.scaling(party.X),
            theta=self.job.family.final_weights(self.job, part.state, len(run.parts)),
            outputs=part.outputs,
            rows=self.rows,
            key=self.real_run[0].parts[name].state.get("key", b""),
        )

    @cached_property
    def labels(self) -> NDArray[np.intp]:
        """The truth (m,): class numbers, in the order of the classes."""
        return np.unique(np.asarray(self.active.y), return_inverse=True)[1]


def noise_like(message: Message) -> Message:
    """Make a message of the same shape without content: every byte string random, every array emptied."""
    changed: dict[str, Any] = {}
    for name in message.__struct_fields__:
        value = changed[name] = getattr(message, name)
        if isinstance(value, bytes):
            changed[name] = os.urandom(len(value))
        elif isinstance(value, np.ndarray):
            changed[name] = np.empty((0,), value.dtype)
    return type(message)(**changed)
