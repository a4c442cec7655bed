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
from securevfl.data.party import Party, check_parties, register_of
from securevfl.data.preparation import FittedPreparation, Preparation, fit
from securevfl.data.register import Register
from securevfl.data.schedule import Rows, Schedule
from securevfl.data.store import StoredParty
from securevfl.data.woe import BinIndicators, Woe, weighed
from securevfl.disclosure.counts import Disclosure, Sizes
from securevfl.disclosure.exposure import ROWS, Holds, enough, label_entropy
from securevfl.disclosure.exposure import alone as count_alone
from securevfl.errors import ConfigError, ProtocolError, TableError
from securevfl.families.base import J, Known, Method
from securevfl.models.class_labels import classes_of
from securevfl.models.loss import check_split
from securevfl.options import JobOptions
from securevfl.protocols import bin_classes, handshake
from securevfl.protocols.bin_classes import EVIDENCE_SUBCHANNEL
from securevfl.protocols.declared import VERDICT, Declared
from securevfl.protocols.party_context import PartyContext
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
    here: Sequence[Party] = (),
    weighed: Sequence[Party] = (),
) -> Sizes:
    """Return the sizes of this job on this schedule, with d_k `columns` at each party and c `outputs`; the others as in
    `Sizes`.

    brought: p_k of parties that bring a module of their own. here: the parties whose tables are at hand, one with the
    labels first, and `weighed` the same with weights of evidence in place of bins. Where these are not known yet, a
    party judges its columns once it has them. A party of no columns is a helper.
    """
    woe, labels = job.prepare.woe, here[0].y if here else None
    own = [party for party in (weighed or here) if party.columns]
    known = woe is None or bool(weighed)
    shares = job.protocol.shares
    opens = shares is not None and shares.open_weights and job.model.loss.classifies and outputs == 1
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
        enough={party.name: enough(party.X[schedule.sample(ROWS)]) for party in own if known},
        partition=schedule.name,
        bins={} if woe is None else {name: woe.counts(d) for name, d in columns.items() if name != active},
        label_bits=label_entropy(positive_rows(job, active, labels, schedule.train))
        if labels is not None and (woe is not None or opens)
        else 1.0,
        alone={
            party.name: singled_out(party, schedule, woe)
            for party in here
            if woe is not None and party.columns and not party.active
        },
        helpers=helpers,
        holds={party.name: Holds.of(party.X[schedule.sample(ROWS)]) for party in own if known or shares is not None},
        alike=None if labels is None else _fewest(job, labels, schedule),
        openings=job.optimizer.count_openings(job.model, [visit.index for visit in schedule.iterations()])
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


def singled_out(party: Party, schedule: Schedule, woe: Woe) -> int:
    """How many rows the counts in the bins of this party would single out."""
    return count_alone(BinIndicators(party.X[schedule.flow], woe.slots))


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
    every = [*handshake.declares(roles), *method.declares(job, roles)]
    return [item for item in every if roles.may_pass(item.sender, item.receiver)]


# Weights of evidence of a party's bins, before a training: told by the party with labels, or by one's own labels.


def weigh(job: JobOptions, party: Party, train: Rows, context: PartyContext) -> Party:
    """Replace the numbers of the party's bins by weights of evidence, found on these training rows, which all parties
    name in the same order. The party is returned as it is where the job asks for none.

    ProtocolError if the party with labels answers with something else than counts.
    """
    options, residual = job.prepare.woe, job.protocol.residual
    if options is None or residual is None:
        return party
    bins = _bins(party, train, options)
    widths = {name: options.counts(context.columns[name]) for name in context.passives}
    own = replace(context, subchannel=EVIDENCE_SUBCHANNEL, outputs=1, residual_bound=1.0, parameters=widths)
    if party.y is not None:
        positive = positive_rows(job, party.name, party.y, train)
        bin_classes.tell(own, residual, positive)
        return _weighed(party, bins, bins.positives(positive), options)
    asked = bins.asked
    found = asked.every(bin_classes.ask(own, residual, asked, asked.rows))
    if (found < 0).any() or (found > bins.rows).any():
        raise ProtocolError(
            f"{party.name}: counts that add up to one number in every column were expected of {context.active}, others "
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


def _bins(party: Party, train: Rows, options: Woe) -> BinIndicators:
    return BinIndicators(party.X[train], options.slots)


def _weighed(party: Party, bins: BinIndicators, positives: NDArray[np.intp], options: Woe) -> Party:
    assert party.preparation is not None, "bins come of a preparation"
    found = FittedPreparation(party.preparation.columns, weighed(party.preparation.steps, bins, positives, options))
    return party.weighed(found)


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
        return party.prepared(FittedPreparation(party.columns))
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
    lead, schedule = parties[0], job.schedule(register_of(parties))
    outputs = _outputs(job, lead, lead.labels, schedule)
    weighed = weigh_pooled(job, parties, schedule.flow)
    sizes = sizes_of(
        job,
        schedule,
        active=lead.name,
        columns={party.name: len(party.columns) for party in parties},
        outputs=outputs,
        brought={
            party.name: job.model.module_parameters(party.name, party.model) for party in parties if party.columns
        },
        here=parties,
        weighed=weighed,
    )
    return Known(tuple(weighed), schedule, sizes)


def _outputs(job: JobOptions, party: Party, labels: NDArray[Any], schedule: Schedule) -> int:
    """Return c, which follows from the labels (m,) of this party. LabelError if the loss has no use for them."""
    loss = job.model.loss
    classes = classes_of(party.name, loss, labels, job.positive)
    check_split(loss, labels[schedule.train], labels[schedule.test], classes)
    return loss.outputs(classes)


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
    lead, schedule = next(iter(columns)), job.schedule(party.register)
    if party.y is not None:
        outputs = _outputs(job, party, party.y, schedule)
    elif outputs is None and not job.model.loss.single:
        raise ConfigError(f"{own.name}: the number of classes was expected, which {lead} knows; give --classes NUMBER")
    sizes = sizes_of(
        job,
        schedule,
        active=lead,
        columns=dict(columns) | {party.name: len(party.columns)},
        outputs=outputs or 1,
        brought=dict(brought or {}) | {party.name: job.model.module_parameters(party.name, party.model)},
        here=[party],
    )
    return Known((party,), schedule, sizes)
