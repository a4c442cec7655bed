"""Exchange of public facts before a run: each party checks that all jobs, tables and sizes fit together.

The facts are in the *hello* messages (`securevfl.protocols.handshake`), the first messages of a run: a digest of the
job, the party's role, numbers of rows, columns and parameters, and a digest of the row order.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from securevfl.base.roles import Roles
from securevfl.consent.sheet_lines import check_tools
from securevfl.data.party import Party
from securevfl.data.schedule import Schedule
from securevfl.disclosure.counts import RunShape
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import (
    ConfigError,
    IdError,
    ProtocolError,
    TableError,
)
from securevfl.families.facts import RunFacts
from securevfl.families.run_facts import facts_of
from securevfl.families.run_shape import derive_run_shape
from securevfl.families.table_preparation import prepare_rows
from securevfl.job import Job
from securevfl.models.class_labels import classes_of
from securevfl.protocols.handshake import RunHello, exchange_hellos
from securevfl.runtime.channel import Channel
from securevfl.training.checkpoint import Checkpoints

MAX_ROWS = 1 << 31
"""Maximum number of rows of a table, and of parameters of a model, that a party may announce."""
MAX_COLUMNS = 1 << 20


@dataclass(frozen=True)
class RunSetup:
    """The facts that a party knows after it has received all hello messages.

    Attributes:
        raw: this party before its columns were prepared.
        party: this party with prepared columns.
        hellos: the hello messages of all parties.
        roles: the role of each party in the run, such as active or passive.
        facts: the facts about the run that this party knows: schedule, shape, outputs and plan.
    """

    raw: Party
    party: Party
    hellos: Mapping[str, RunHello]
    roles: Roles
    facts: RunFacts

    @property
    def schedule(self) -> Schedule:
        """Which rows are held out, and which rows form each batch."""
        return self.facts.schedule

    @property
    def sizes(self) -> RunShape:
        """The public sizes of the run."""
        return self.facts.shape


def set_up_run(
    job: Job,
    raw: Party,
    channel: Channel,
    parties: Sequence[str],
    key: bytes,
    checkpoints: Checkpoints | None,
    ledger: DisclosureLedger | None,
) -> RunSetup:
    """Exchange hello messages with the other parties, and check that all parties fit together.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        raw: this party and its table.
        channel: the channel to the other parties.
        parties: names of all parties, the leading one first.
        key: identifier of the job and the party's table, as `run_key` returns it.
        checkpoints: this party's checkpoints.
        ledger: this party's ledger, a file that records and limits its disclosures in all jobs.

    Returns:
        The facts that this party knows then.

    Raises:
        PackageMissingError: if the job needs a package that this party lacks.
        IdError: if this party's table has ids, others' have none, and the columns depend on the order of rows.
    """
    check_tools(job, raw.name)
    schedule = job.schedule(raw.register) if raw.columns else None
    party, loss = raw if schedule is None else prepare_rows(job, raw, schedule), job.model.loss
    hello = RunHello(
        job=job.digest,
        role=job.family.role_of(party),
        rows=len(party),
        columns=party.X.shape[1],
        parameters=job.model.module_parameters(party.name, party.model),
        outputs=loss.outputs(classes_of(party, loss)) if party.y is not None else 0,
        order=hmac.digest(channel.session, party.order, hashlib.sha256) if party.order else b"",
        saved=checkpoints.rounds(key) if checkpoints is not None else (),
        run=checkpoints.run(key) if checkpoints is not None else "",
        content="" if ledger is None else ledger.table_tag(party),
        evaluated=() if checkpoints is None else checkpoints.evaluations(key).numbers,
    )
    hellos = exchange_hellos(channel, parties, hello)
    columns = {name: other.columns for name, other in hellos.items()}
    announced_roles = _check_hellos(job, channel.me, hellos)
    roles = job.family.complete_roles(job, announced_roles, {name: d for name, d in columns.items() if d})
    lead, with_rows = hellos[roles.lead], [other for other in hellos.values() if other.rows]
    by_ids = len(party) > 0 and all(other.order for other in with_rows)
    if schedule is None:
        schedule = job.schedule(lead.rows)
    # although this party has ids, another party has none, so all parties select rows by row numbers
    if party.order and not by_ids:
        schedule = job.schedule(lead.rows)
        announced, party = party, prepare_rows(job, raw, schedule)
        if party.columns != announced.columns:
            raise IdError(
                f"{raw.name} has ids of rows, but another party has none",
                "name the id column at every party, or at none",
                code="SVFL-ID-MISSING",
                party=raw.name,
            )
    trusts = () if ledger is None else ledger.read().trusts
    sizes = derive_run_shape(
        job,
        schedule,
        active=roles.lead,
        columns=columns,
        outputs=lead.outputs,
        module_parameters={name: other.parameters for name, other in hellos.items()},
        tables={name: other.content for name, other in hellos.items() if other.columns and name in trusts},
        local_parties=[party],
    )
    return RunSetup(raw, party, hellos, roles, facts_of(job, [party], schedule, sizes))


def run_key(job: Job, party: Party) -> bytes:
    """Return a public hash (32 bytes) of the job and the party's table, which identifies the party's checkpoints."""
    return run_key_of(job, party.digest)


def run_key_of(job: Job, table: bytes) -> bytes:
    """Return the hash of `run_key`, given the table's digest, because computing that digest may take long."""
    return hashlib.sha256(job.digest + table).digest()


def _check_hellos(job: Job, me: str, hellos: Mapping[str, RunHello]) -> Roles:
    """Check that the hello messages of all parties fit together, and return the role of each."""
    my_hello = hellos[me]
    reference = me if my_hello.rows else next((name for name, hello in hellos.items() if hello.rows), me)
    rows = hellos[reference].rows
    for position, (peer, hello) in enumerate(hellos.items()):
        if hello.job != my_hello.job:
            raise ConfigError(
                f"{peer} runs another job than {me}",
                "give both the same job file",
                code="SVFL-JOB-MISMATCH",
                peer=peer,
            )
        if hello.rows and rows and hello.rows != rows:
            raise TableError(
                f"{peer} has {hello.rows} rows and {reference} has {rows}",
                "align the tables first",
                code="SVFL-TABLE-ROW-COUNT",
                peer=peer,
            )
        if hello.order and my_hello.order and not hmac.compare_digest(hello.order, my_hello.order):
            raise IdError(
                f"{peer} and {me} have their rows in different order",
                "align the tables first",
                code="SVFL-ID-ORDER",
                peer=peer,
            )
        _check_size_limits(job, peer, hello)
        if not job.model.accepts_module_parameters(peer, hello.parameters):
            raise ProtocolError(
                f"{peer} announces a module with {hello.parameters:,} weights, which the job does not allow",
                "ask the operator of that party for the reason",
                code="SVFL-PROTOCOL-VALUES",
                peer=peer,
            )
        fits = bool(hello.rows) == bool(hello.columns) and (hello.outputs > 0 or position > 0)
        if not fits or not job.family.accepts_role(hello.role, leads=position == 0):
            task = "lead" if position == 0 else "take part"
            raise ProtocolError(
                f"{peer} cannot {task} in the role {hello.role}",
                "check the roles of the parties",
                code="SVFL-PARTIES-ROLE",
                peer=peer,
            )
    return Roles.of((name, hello.role) for name, hello in hellos.items())


def _check_size_limits(job: Job, peer: str, hello: RunHello) -> None:
    """Check that the sizes in a hello message are not too large, because this party allocates memory for them."""
    outputs = 1 if job.model.loss.single else max(1, hello.rows)
    limits = {"rows": MAX_ROWS, "columns": MAX_COLUMNS, "parameters": MAX_ROWS, "outputs": outputs}
    for field, limit in limits.items():
        announced: int = getattr(hello, field)
        if not 0 <= announced <= limit:
            raise ProtocolError(
                f"{peer} announces {announced:,} {field}, and at most {limit:,} are possible",
                "ask the operator of that party for the reason",
                code="SVFL-PROTOCOL-VALUES",
                peer=peer,
            )
