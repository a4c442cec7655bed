"""The sizes of a job on a schedule, and what a run tells by its scores, whatever its method."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.roles import Roles
from securevfl.data.evidence import BinRows
from securevfl.data.party import Party
from securevfl.data.schedule import Rows, Schedule
from securevfl.disclosure.counts import Disclosure, Sizes
from securevfl.disclosure.exposure import ROWS, enough
from securevfl.disclosure.holds import Holds, label_entropy
from securevfl.disclosure.holds import alone as count_alone
from securevfl.families.base import Method
from securevfl.models.loss import check_split
from securevfl.models.positive import classes_of
from securevfl.options import JobOptions
from securevfl.protocols import meeting
from securevfl.protocols.declared import VERDICT, Declared
from securevfl.runtime.door import Group


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
        openings=job.optimizer.opened(job.model, [visit.index for visit in schedule.visits()]) / max(1, len(schedule)),
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


def declared_of(method: Method[Any], job: JobOptions, roles: Roles) -> list[Declared]:
    """All declarations between roles that two different parties of the run have."""
    every = [*meeting.declares(roles), *method.declares(job, roles)]
    return [item for item in every if roles.may_pass(item.sender, item.receiver)]
