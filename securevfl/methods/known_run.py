"""What is known of a run whose parties sit in one process, before it: for the consent sheet and the audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from securevfl.data.party import Party, register_of
from securevfl.disclosure.exposure import ROWS, enough
from securevfl.disclosure.holds import Holds
from securevfl.errors import ConfigError
from securevfl.methods.base import Known
from securevfl.methods.evidence_weights import weigh_pooled
from securevfl.methods.prepared_columns import prepare, prepare_all
from securevfl.methods.sizes import enough_alone, held_alone, singled_out, sizes_of
from securevfl.models.loss import check_split
from securevfl.models.positive import classes_of
from securevfl.options import JobOptions


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
