"""What is known of a run whose parties sit in one process, before it: for the consent sheet and the audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy

from securevfl.data.party import Party, register_of
from securevfl.data.preparation import Preparation, Prepared, fit
from securevfl.data.register import Register
from securevfl.data.store import StoredParty
from securevfl.disclosure.exposure import ROWS, enough
from securevfl.disclosure.holds import Holds
from securevfl.errors import ConfigError, TableError
from securevfl.families.base import J, Known
from securevfl.families.evidence_weights import weigh_pooled
from securevfl.families.sizes import enough_alone, held_alone, singled_out, sizes_of
from securevfl.models.loss import check_split
from securevfl.models.positive import classes_of
from securevfl.options import JobOptions

# A party's columns as its job prepares them: before anything is counted, said or sent.


def prepare(job: JobOptions, party: Party, register: Register) -> Party:
    """Prepare the party's columns by its training rows under this register; a party that is prepared already is
    returned as it is.

    TableError if the job has no use for its columns as they are, or they lie on disk and would have to be changed.
    """
    if party.preparation is not None or not party.columns:
        return party
    column = None if job.weights is None or not party.active or party.weights is not None else job.weights.column
    exposure = job.exposure if party.active and party.exposure is None else None
    dropped = [name for name in job.prepare.drop if name in party.columns]
    if isinstance(party, StoredParty):
        if dropped:
            raise TableError(
                f"party {party.name}: a table in memory was expected to leave columns out of, it is read from disk; "
                "prepare such large tables beforehand"
            )
        if column is not None or exposure is not None:
            raise TableError(
                f"party {party.name}: weights and exposures in a table in memory were expected, it is read from disk; "
                "weigh classes, or bring a smaller table"
            )
        if any(each is not None for each in (job.prepare.clip, job.prepare.bins, job.prepare.woe)):
            raise TableError(
                f"party {party.name}: a table in memory was expected to clip or part columns, it is read from disk; "
                "prepare such large tables beforehand"
            )
        return party.prepared(Prepared(party.columns))
    if dropped:
        party = party.without(dropped)
    if column is not None:
        party = party.weighed_by(column)
    if exposure is not None:
        party = party.exposed_by(exposure)
    options = job.prepare if job.scaling != "none" else job.prepare.model_copy(update={"tails": "keep"})
    return party.prepared(fit(party.name, party.table, job.schedule(register).flow, options))


def prepare_all(job: JobOptions, parties: Sequence[Party]) -> list[Party]:
    """All parties of a run in one process, the leading one first."""
    register = register_of(parties)
    return [prepare(job, party, register) for party in parties]


def as_prepared(job: J, parties: Sequence[Party]) -> tuple[J, list[Party]]:
    """Return the same run as a job that prepares nothing, with parties whose columns are already prepared, and weighed
    by the labels of the leading one."""
    train = job.schedule(register_of(parties)).flow
    found = [copy(party) for party in weigh_pooled(job, prepare_all(job, parties), train)]
    for party in found:
        party.preparation = party.preparation and party.preparation.done
    return job.model_copy(update={"prepare": Preparation()}), found


def known_run(job: JobOptions, parties: Sequence[Party]) -> Known:
    """Sizes and schedule of a run of these parties, the leading one first. LabelError if the loss has no use for y."""
    parties = prepare_all(job, parties)
    lead, loss = parties[0], job.model.loss
    schedule = job.schedule(register_of(parties))
    classes = classes_of(lead.name, loss, lead.labels, job.positive)
    check_split(loss, lead.labels[schedule.train], lead.labels[schedule.test], classes)
    tables = [party for party in parties if party.columns]
    weighed = weigh_pooled(job, parties, schedule.flow)
    sizes = sizes_of(
        job,
        schedule,
        active=lead.name,
        columns={party.name: len(party.columns) for party in parties},
        outputs=loss.outputs(classes),
        brought={party.name: job.model.brought(party.name, party.model) for party in tables},
        enough={party.name: enough(party.X[schedule.sample(ROWS)]) for party in weighed if party.columns},
        labels=lead.y,
        alone={name: rows for party in tables for name, rows in singled_out(job, party, schedule).items()},
        holds={party.name: Holds.of(party.X[schedule.sample(ROWS)]) for party in weighed if party.columns},
    )
    return Known(tuple(weighed), schedule, sizes)


def known_alone(
    job: JobOptions,
    own: Party,
    columns: Mapping[str, int],
    *,
    outputs: int | None = None,
    brought: Mapping[str, int] | None = None,
) -> Known:
    """Return what a party knows of a run from its own table, and from `columns`, the number of columns d_k of each
    party by name, the leading one first.

    outputs: c, which a party without labels is told by others; 1 for a loss that has one. ConfigError without it for
    another loss, LabelError as `known_run`.
    """
    party = prepare(job, own, own.register)
    loss, lead = job.model.loss, next(iter(columns))
    schedule = job.schedule(party.register)
    if party.y is not None:
        classes = classes_of(party.name, loss, party.y, job.positive)
        check_split(loss, party.y[schedule.train], party.y[schedule.test], classes)
        outputs = loss.outputs(classes)
    elif outputs is None and not loss.single:
        raise ConfigError(f"{own.name}: the number of classes was expected, which {lead} knows; give --classes NUMBER")
    sizes = sizes_of(
        job,
        schedule,
        active=lead,
        columns=dict(columns) | {party.name: len(party.columns)},
        outputs=outputs or 1,
        brought=dict(brought or {}) | {party.name: job.model.brought(party.name, party.model)},
        enough=enough_alone(job, party, schedule),
        labels=party.y,
        alone=singled_out(job, party, schedule),
        holds=held_alone(job, party, schedule),
    )
    return Known((party,), schedule, sizes)
