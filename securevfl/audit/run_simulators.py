"""Simulators of a whole run: the view of any role, generated from its table, public sizes and declared outputs.

A view is everything that one party received. These simulators are for protocol families whose messages reveal nothing
but outputs, such as training on secret shares (`Family.reveals_only_outputs`).

The simulator draws random tables and labels of the same size for all other parties, and runs the training with them.
Messages that open an output (scores, sums of losses) follow from the output itself, so they are left out of both views.
So are messages that are declared as plain or public. The remaining messages must be statistically indistinguishable
from those of the real view: ciphertexts, masked values, shares, and their differences with each other. The same must
hold for everything that the role computes about residuals from its own masks.
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
from securevfl.families.message_declarations import run_declarations, run_roles
from securevfl.job import Job
from securevfl.training.simulate import simulate


def run_views(job: Job, parties: Sequence[Party]) -> Outcome:
    """Compare every role's view of a job on these tables with a simulated view."""
    lead, others = check_parties(parties)
    outcome, (real, real_recording) = Outcome(), _run(job, parties)
    by_role = {real.roles.role(party.name): party for party in reversed([lead, *others])}
    for party in by_role.values():
        tables = [table if table is party else random_table(table) for table in parties]
        simulated, simulated_recording = _run(job, tables)
        outcome = outcome.merge(compare([real], [simulated], party.name))
        if not real_recording[party.name].residual_shares:
            continue
        known = [
            np.concatenate([share.values.ravel() for share in recording[party.name].residual_shares])
            for recording in (real_recording, simulated_recording)
        ]
        battery, bits = Battery(), max(8, int(np.log2(max(1.0, np.abs(known[0]).max()))) + 1)
        fractions = (words / 2.0**bits % 1 for words in known)
        add_two_sample_tests(battery, f"shares of residuals at {party.name}", *fractions)
        outcome.statistics("simulator", party.name, battery)
    return outcome


def random_table(party: Party) -> Party:
    """Return a party with a random table of the same size, and with permuted labels if the party has labels."""
    rng = np.random.default_rng([len(party), len(party.columns)])
    y = None if party.y is None else rng.permutation(np.resize(np.unique(np.asarray(party.y)), len(party)))
    X, aligned = rng.normal(size=(len(party), len(party.columns))), party.ids is None
    return Party(party.name, X, y, ids=party.ids, columns=party.columns, aligned=aligned)


def _run(job: Job, parties: Sequence[Party]) -> tuple[Transcript, Recording]:
    """Run the job; return its transcript without messages that open an output, and its recording."""
    roles, recording = run_roles(job.family, job, parties), Recording()
    simulate(job, parties, workers=1, observe=recording)
    events = [event for record in recording.values() for event in record.events]
    run = Transcript(events, roles, run_declarations(job.family, job, roles), ProtocolRecord())
    declarations = ((event, run.declaration(event)) for event in run.events)
    hidden = [event for event, declared in declarations if declared is None or declared.reveals.kind != "output"]
    return replace(run, events=hidden), recording
