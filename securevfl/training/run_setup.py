"""Exchange of public facts before a run: each party checks that all jobs, tables and sizes fit together."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from securevfl.base.roles import Roles
from securevfl.data.party import Party
from securevfl.data.register import Register
from securevfl.data.schedule import Schedule
from securevfl.disclosure.counts import RunShape
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import (
    ConfigError,
    IdError,
    ProtocolError,
    TableError,
)
from securevfl.families.run_shape import derive_run_shape
from securevfl.families.table_preparation import prepare_party
from securevfl.job import Job
from securevfl.protocols.handshake import RunHello, exchange_hellos
from securevfl.runtime.channel import Channel
from securevfl.training.checkpoint import Checkpoints

MAX_ROWS = 1 << 31  # rows of a table, and numbers of a model, that a party may say it has

MAX_COLUMNS = 1 << 20


@dataclass(frozen=True)
class RunSetup:
    """What is known once all have said who they are. raw: this party before its columns were prepared."""

    raw: Party
    party: Party
    heard: Mapping[str, RunHello]
    roles: Roles
    schedule: Schedule
    sizes: RunShape


def set_up_run(
    job: Job,
    raw: Party,
    channel: Channel,
    parties: Sequence[str],
    key: bytes,
    checkpoints: Checkpoints | None,
    ledger: DisclosureLedger | None,
) -> RunSetup:
    """Meets the others, and checks that all fit together. key: that of this run, see `run_key`."""
    party, loss = prepare_party(job, raw, raw.register), job.model.loss
    own = RunHello(
        job=job.digest,
        role=job.family.role_of(party),
        rows=len(party),
        columns=party.X.shape[1],
        parameters=job.model.module_parameters(party.name, party.model),
        outputs=loss.outputs(loss.classes(party.y)) if party.y is not None else 0,
        order=hmac.digest(channel.session, party.order, hashlib.sha256) if party.order else b"",
        saved=checkpoints.rounds(key) if checkpoints is not None else (),
        run=checkpoints.run(key) if checkpoints is not None else "",
        content="" if ledger is None else ledger.table_tag(party),
    )
    heard = exchange_hellos(channel, parties, own)
    columns = {name: other.columns for name, other in heard.items()}
    roles = job.family.complete_roles(
        job, _check_meetings(job, channel.me, heard), {name: d for name, d in columns.items() if d}
    )
    lead, tables = heard[roles.lead], [other for other in heard.values() if other.rows]
    by_ids = len(party) > 0 and all(other.order for other in tables)
    schedule = job.schedule(party.register if by_ids else lead.rows)
    if party.order and not by_ids:  # it has ids, others have none: rows are drawn by their numbers
        said, party = party, prepare_party(job, raw, Register.of_numbers(len(raw)))
        if party.columns != said.columns:
            raise IdError(
                f"ids at every party or at none were expected, {raw.name} has some and others have none; name the id "
                "column"
            )
    trusts = () if ledger is None else ledger.read().trusts  # whose columns it believes to be those of earlier jobs
    sizes = derive_run_shape(
        job,
        schedule,
        active=roles.lead,
        columns=columns,
        outputs=lead.outputs,
        module_parameters={name: other.parameters for name, other in heard.items()},
        tables={name: other.content for name, other in heard.items() if other.columns and name in trusts},
        local_parties=[party],
    )
    return RunSetup(raw, party, heard, roles, schedule, sizes)


def run_key(job: Job, party: Party) -> bytes:
    """Return the key under which the states of a party are filed: a hash of the job and of the contents of the table it
    trains on, 32 bytes."""
    return run_key_of(job, party.digest)


def run_key_of(job: Job, table: bytes) -> bytes:
    """Return `run_key` from the digest of the table, which takes long where there are many values."""
    return hashlib.sha256(job.digest + table).digest()


def _check_meetings(job: Job, me: str, heard: Mapping[str, RunHello]) -> Roles:
    """Check that the meetings of all parties fit together, and return the role of each."""
    own = heard[me]
    whose = me if own.rows else next((name for name, other in heard.items() if other.rows), me)
    rows = heard[whose].rows
    for place, (peer, other) in enumerate(heard.items()):
        if other.job != own.job:
            raise ConfigError(f"{peer} runs another job than {me}; give both the same job file")
        if other.rows and rows and other.rows != rows:
            raise TableError(f"{peer} has {other.rows} rows, {whose} {rows}; align the tables first")
        if other.order and own.order and not hmac.compare_digest(other.order, own.order):
            raise IdError(f"{peer} and {me} hold their rows in different order; align the tables first")
        _check_size_limits(job, peer, other)
        fits = bool(other.rows) == bool(other.columns) and (other.outputs > 0 or place > 0)
        if not fits or not job.family.accepts_role(other.role, leads=place == 0):
            what = "lead" if place == 0 else "take part"
            raise ProtocolError(f"{peer} was expected to {what}, and says that it is {other.role}; check roles")
    return Roles.of((name, other.role) for name, other in heard.items())


def _check_size_limits(job: Job, peer: str, other: RunHello) -> None:
    """ProtocolError unless a party's table can have the sizes that it says, from which memory is taken."""
    outputs = 1 if job.model.loss.single else max(1, other.rows)
    limits = {"rows": MAX_ROWS, "columns": MAX_COLUMNS, "parameters": MAX_ROWS, "outputs": outputs}
    for what, limit in limits.items():
        said: int = getattr(other, what)
        if not 0 <= said <= limit:
            raise ProtocolError(f"{peer} was expected to have 0 to {limit:,} {what}, it says {said:,}; ask it why")
