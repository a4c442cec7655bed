"""The sizes of a job on a schedule, and what a run tells by its scores, whatever its method."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.roles import Roles
from securevfl.data.evidence import BinRows, Woe, weighed
from securevfl.data.party import Party, check_parties, register_of
from securevfl.data.preparation import Preparation, Prepared, fit
from securevfl.data.register import Register
from securevfl.data.schedule import Rows, Schedule
from securevfl.data.store import StoredParty
from securevfl.disclosure.counts import Disclosure, Sizes
from securevfl.disclosure.exposure import ROWS, Holds, enough, label_entropy
from securevfl.disclosure.exposure import alone as count_alone
from securevfl.errors import ConfigError, ProtocolError, TableError
from securevfl.families.base import J, Known, Method
from securevfl.models.loss import check_split, classes_of
from securevfl.options import JobOptions
from securevfl.protocols import bin_classes, seat
from securevfl.protocols.bin_classes import LANE
from securevfl.protocols.declared import VERDICT, Declared
from securevfl.protocols.seat import Seat
from securevfl.runtime.channel import Group


def sizes_of(
    job: JobOptions,
    schedule: Schedule,
    *,
    active: str,
    columns: Mapping[str, int],
    outputs: int,
    brought: Mapping[str, int] | None = None,
    tables: Mapping[str, str] | None = None,
    enough: Mapping[str, float] | None = None,
    labels: NDArray[Any] | None = None,
    alone: Mapping[str, int] | None = None,
    holds: Mapping[str, Holds] | None = None,
) -> Sizes:
    """Return the sizes of this job on this schedule, with d_k `columns` at each party and c `outputs`; the others as in
    `Sizes`.

    brought: p_k of parties that bring a module of their own. labels (m,): where they are at hand. A party of no columns
    is a helper.
    """
    woe = job.prepare.woe
    weighed = job.protocol.shares is not None and job.protocol.shares.open_weights
    helpers = tuple(name for name, d in columns.items() if not d)
    columns = {name: d for name, d in columns.items() if d}
    return Sizes(
        active=active,
        rows=len(schedule.train),
        held_out=len(schedule.test),
        batches=schedule.batches,
        smallest_batch=schedule.smallest_batch,
        epochs=job.epochs,
        outputs=outputs,
        parameters={
            name: (brought or {}).get(name) or job.model.parameters(d, outputs)
            for name, d in columns.items()
            if name != active
        },
        columns={active: columns[active]} | dict(columns),
        tables=dict(tables or {}),
        enough=dict(enough or {}),
        partition=schedule.name,
        bins={} if woe is None else {name: woe.counts(d) for name, d in columns.items() if name != active},
        label_bits=label_entropy(positive_rows(job, active, labels, schedule.train))
        if labels is not None and (woe is not None or (weighed and job.model.loss.classifies and outputs == 1))
        else 1.0,
        alone=dict(alone or {}),
        helpers=helpers,
        holds=dict(holds or {}),
        alike=None if labels is None else _fewest(job, labels, schedule),
        openings=job.optimizer.count_openings(job.model, [visit.index for visit in schedule.visits()])
        / max(1, len(schedule)),
    )


def _fewest(job: JobOptions, labels: NDArray[Any], schedule: Schedule) -> int | None:
    """How many rows that are evaluated have the rarest label."""
    if not job.model.loss.classifies:
        return None
    rows = schedule.test if len(schedule.test) else schedule.flow
    return min(int((labels[rows] == each).sum()) for each in np.unique(labels))


def positive_rows(job: JobOptions, lead: str, labels: NDArray[Any], train: Rows) -> NDArray[np.bool_]:
    """Which of these training rows of party `lead` are of the positive class. LabelError if the labels (m,), or theirs,
    are not of two: whoever is told that none of its rows is of one class is told all labels."""
    classes = classes_of(lead, job.model.loss, labels, job.positive)
    check_split(job.model.loss, labels[train], labels[:0], classes)
    return np.asarray(labels[train] == classes[1])


def enough_alone(job: JobOptions, party: Party, schedule: Schedule) -> dict[str, float]:
    """Numbers a row that are enough to find the columns of this party, by its name; empty where it has none, or they
    are not known yet, as weights of evidence follow from labels: it judges them once it has them."""
    if not party.columns or job.prepare.woe is not None:
        return {}
    return {party.name: enough(party.X[schedule.sample(ROWS)])}


def held_alone(job: JobOptions, party: Party, schedule: Schedule) -> dict[str, Holds]:
    """Return what a row of this party's columns holds, by its name; empty where it has none, or none yet that are
    numbers."""
    if not party.columns or (job.prepare.woe is not None and job.protocol.shares is None):
        return {}
    return {party.name: Holds.of(party.X[schedule.sample(ROWS)])}


def singled_out(job: JobOptions, party: Party, schedule: Schedule) -> dict[str, int]:
    """How many rows the counts in the bins of this party would single out, by its name; empty where none are told."""
    woe = job.prepare.woe
    if woe is None or party.active or not party.columns:
        return {}
    return {party.name: count_alone(BinRows(party.X[schedule.flow], woe.slots))}


def evaluations(job: JobOptions, sizes: Sizes) -> int:
    """How often all parties predict together in a run: where it is due between rounds, and at the end."""
    interval = job.evaluation_interval
    return 1 + (sizes.epochs * sizes.batches // interval if interval else 0)


def evaluated(job: JobOptions, sizes: Sizes) -> tuple[Group, int]:
    """Return which group of rows is evaluated, and how many rows are evaluated in a run, counted in every evaluation
    anew."""
    return ("held out" if sizes.held_out else "training"), evaluations(job, sizes) * (sizes.held_out or sizes.rows)


def verdicts(job: JobOptions, sizes: Sizes) -> list[Disclosure]:
    """Count the bits by which passive parties are told, after evaluations, how to go on: of labels of the rows that
    are evaluated, as one that deviates may have the metric hang on a single one."""
    times = sizes.visits // job.verdicts if job.verdicts else 0
    rows = sizes.held_out or sizes.rows
    held = max(1, int(rows * (math.log2(sizes.outputs) if sizes.outputs > 1 else sizes.label_bits)))
    told = [(name, times * VERDICT) for name in sizes.passives if times]
    about = (sizes.active,)
    return [Disclosure("labels", name, about, bits, held, group="verdicts", numbers=times) for name, bits in told]


def scores(job: JobOptions, sizes: Sizes) -> list[Disclosure]:
    """How many numbers f the joint evaluations tell the leading party."""
    rows = sizes.held_out or sizes.rows
    told = evaluations(job, sizes) * rows * sizes.outputs
    return [Disclosure("scores", sizes.active, sizes.passives, told, 0)]


# What each message of a run of a job reveals, handshake included, in the roles of that run.


def roles_of(method: Method[Any], job: JobOptions, parties: Sequence[Party]) -> Roles:
    """Return who plays which part in a job of these parties. PartiesError if they do not fit."""
    lead, others = check_parties(parties)
    roles = method.cast([lead, *others])
    return method.assigned(job, roles, {party.name: len(party.columns) for party in parties})


def declared_of(method: Method[Any], job: JobOptions, roles: Roles) -> list[Declared]:
    """All declarations between roles that two different parties of the run have."""
    every = [*seat.declares(roles), *method.declares(job, roles)]
    return [item for item in every if roles.may_pass(item.sender, item.receiver)]


# Weights of evidence of a party's bins, before a training: told by the party with labels, or by one's own labels.


def weigh(job: JobOptions, party: Party, train: Rows, seat: Seat) -> Party:
    """Replace the numbers of the party's bins by weights of evidence, found on these training rows, which all parties
    name in the same order. The party is returned as it is where the job asks for none.

    ProtocolError if the party with labels answers with something else than counts.
    """
    options, residual = job.prepare.woe, job.protocol.residual
    if options is None or residual is None:
        return party
    bins = _bins(party, train, options)
    widths = {name: options.counts(seat.columns[name]) for name in seat.passives}
    own = replace(seat, lane=LANE, outputs=1, residual_bound=1.0, parameters=widths)
    if party.y is not None:
        positive = positive_rows(job, party.name, party.y, train)
        bin_classes.tell(own, residual, positive)
        return _weighed(party, bins, bins.positives(positive), options)
    asked = bins.asked
    found = asked.every(bin_classes.ask(own, residual, asked, asked.rows))
    if (found < 0).any() or (found > bins.rows).any():
        raise ProtocolError(
            f"{party.name}: counts that add up to one number in every column were expected of {seat.active}, others "
            "came; do both hold the same rows?"
        )
    return _weighed(party, bins, found, options)


def weigh_pooled(job: JobOptions, parties: Sequence[Party], train: Rows) -> list[Party]:
    """Replace bins by weights of evidence as `weigh` does, for parties that sit in one process, the leading one first,
    straight from its labels."""
    options = job.prepare.woe
    if options is None:
        return list(parties)
    lead, found = parties[0], []
    positive = positive_rows(job, lead.name, lead.labels, train)
    for party in parties:
        bins = _bins(party, train, options)
        found.append(_weighed(party, bins, bins.positives(positive), options))
    return found


def _bins(party: Party, train: Rows, options: Woe) -> BinRows:
    return BinRows(party.X[train], options.slots)


def _weighed(party: Party, bins: BinRows, positives: NDArray[np.intp], options: Woe) -> Party:
    assert party.preparation is not None, "bins come of a preparation"
    found = Prepared(party.preparation.columns, weighed(party.preparation.steps, bins, positives, options))
    return party.weighed(found)


# What is known of a run whose parties sit in one process, before it: for the consent sheet and the audit.


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
        party = party.with_column_as("weights", column)
    if exposure is not None:
        party = party.with_column_as("exposure", exposure)
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
