"""The public sizes of a run, derived from its job, its schedule and the tables that are available."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.data.party import Party
from securevfl.data.schedule import Rows, Schedule
from securevfl.data.woe import BinIndicators, Woe
from securevfl.disclosure.column_recovery import MAX_SAMPLE_ROWS, numbers_for_recovery
from securevfl.disclosure.counts import RunShape
from securevfl.disclosure.information_content import InformationContent
from securevfl.disclosure.label_bits import count_singled_out as count_alone
from securevfl.disclosure.label_bits import label_entropy
from securevfl.models.class_labels import find_classes
from securevfl.models.loss import check_split
from securevfl.options import JobOptions


def derive_run_shape(
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
) -> RunShape:
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
    return RunShape(
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
        recovery_thresholds={
            party.name: numbers_for_recovery(party.X[schedule.sample(MAX_SAMPLE_ROWS)]) for party in own if known
        },
        partition=schedule.name,
        bins={} if woe is None else {name: woe.counts(d) for name, d in columns.items() if name != active},
        label_bits=label_entropy(positive_rows(job, active, labels, schedule.train))
        if labels is not None and (woe is not None or opens)
        else 1.0,
        singled_out={
            party.name: count_singled_out_rows(party, schedule, woe)
            for party in here
            if woe is not None and party.columns and not party.active
        },
        helpers=helpers,
        information={
            party.name: InformationContent.of(party.X[schedule.sample(MAX_SAMPLE_ROWS)])
            for party in own
            if known or shares is not None
        },
        rarest_label_rows=None if labels is None else _count_rarest_label(job, labels, schedule),
        openings=job.optimizer.count_openings(job.model, [visit.index for visit in schedule.iterations()])
        / max(1, len(schedule)),
    )


def _count_rarest_label(job: JobOptions, labels: NDArray[Any], schedule: Schedule) -> int | None:
    """How many rows that are evaluated have the rarest label."""
    if not job.model.loss.classifies:
        return None
    rows = schedule.test if len(schedule.test) else schedule.batch_order
    return min(int((labels[rows] == each).sum()) for each in np.unique(labels))


def positive_rows(job: JobOptions, lead: str, labels: NDArray[Any], train: Rows) -> NDArray[np.bool_]:
    """Which of these training rows of party `lead` are of the positive class. LabelError if the labels (m,), or theirs,
    are not of two: whoever is told that none of its rows is of one class is told all labels."""
    classes = find_classes(lead, job.model.loss, labels, job.positive)
    check_split(job.model.loss, labels[train], labels[:0], classes)
    return np.asarray(labels[train] == classes[1])


def count_singled_out_rows(party: Party, schedule: Schedule, woe: Woe) -> int:
    """How many rows the counts in the bins of this party would single out."""
    return count_alone(BinIndicators(party.X[schedule.batch_order], woe.slots))
