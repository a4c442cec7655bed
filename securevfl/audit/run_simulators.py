"""Simulators of a whole run: any role's view, from its own table, sizes and what is declared as output.

They are for methods that open nothing but outputs, as shares do (`Family.reveals_only_outputs`).

The simulator makes up tables and labels of everyone else at random, of the sizes that are public, and plays the
training with them. What opens an output (scores, sums of losses) it makes from the output itself, so these messages
are left out on both sides; so is what is declared as plain or public. What remains must not be told from the real
view: ciphertexts, answers, corrections, places, tables, deltas, parts, their differences in turn and with each other,
and what the role can make of them by its own masks: all that it knows of residuals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from securevfl.audit.recording.party_recording import Recording
from securevfl.audit.recording.protocol_record import ProtocolRecord
from securevfl.audit.recording.transcript import Transcript
from securevfl.audit.simulators import compare
from securevfl.audit.statistics import Battery, add_two_sample_tests
from securevfl.audit.transcript_checks import Outcome
from securevfl.data.party import Party, check_parties
from securevfl.families.declarations import run_declarations, run_roles
from securevfl.job import Job
from securevfl.training.simulate import simulate


def run_views(job: Job, parties: Sequence[Party]) -> Outcome:
    """Every role's view of a job with these tables, real against simulated."""
    lead, others = check_parties(parties)
    outcome, (real, seen) = Outcome(), _played(job, parties)
    by_role = {real.roles.role(party.name): party for party in reversed([lead, *others])}
    for party in by_role.values():
        simulated, made = _played(job, [own if own is party else made_up(own) for own in parties])
        outcome = outcome.merge(compare([real], [simulated], party.name))
        if not seen[party.name].shared:
            continue
        known = [np.concatenate([each.values.ravel() for each in tape[party.name].shared]) for tape in (seen, made)]
        battery, bits = Battery(), max(8, int(np.log2(max(1.0, np.abs(known[0]).max()))) + 1)
        add_two_sample_tests(
            battery, f"what {party.name} knows of residuals", *(words / 2.0**bits % 1 for words in known)
        )
        outcome.statistics("simulator", party.name, battery)
    return outcome


def made_up(party: Party) -> Party:
    """Make a table of the same sizes, and labels of the same kinds where the party has any, that say nothing."""
    rng = np.random.default_rng([len(party), len(party.columns)])
    y = None if party.y is None else rng.permutation(np.resize(np.unique(np.asarray(party.y)), len(party)))
    X, aligned = rng.normal(size=(len(party), len(party.columns))), party.ids is None
    return Party(party.name, X, y, ids=party.ids, columns=party.columns, aligned=aligned)


def _played(job: Job, parties: Sequence[Party]) -> tuple[Transcript, Recording]:
    """Run the job, and return its messages without those that open an output, and all that was seen."""
    roles, tape = run_roles(job.family, job, parties), Recording()
    simulate(job, parties, workers=1, observe=tape)
    events = [event for record in tape.values() for event in record.events]
    run = Transcript(events, roles, run_declarations(job.family, job, roles), ProtocolRecord())
    said = ((event, run.declaration(event)) for event in run.events)
    others = [event for event, declared in said if declared is None or declared.reveals.kind != "output"]
    return replace(run, events=others), tape
