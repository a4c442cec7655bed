"""The public sizes of a run, derived from its job, its schedule and the tables that are available in this process.

The active party has the labels, passive parties have none, and helpers have no columns. Weights of evidence replace the
bins of a column by the log odds of the classes in each bin. A party's ledger records the disclosures of all its jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.data.party import Party
from securevfl.data.schedule import IterationIndices, Rows, Schedule
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
    module_parameters: Mapping[str, int] | None = None,
    tables: Mapping[str, str] | None = None,
    local_parties: Sequence[Party] = (),
    encoded_parties: Sequence[Party] = (),
) -> RunShape:
    """Derive the public sizes of a run: numbers of rows, batches, columns, outputs and weights.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        schedule: which rows form which batch.
        active: name of the active party.
        columns: d_k, number of columns of each party; a party without columns is a helper.
        outputs: c, number of outputs of a row.
        module_parameters: number of weights of each party that brings a network module.
        tables: digests of the parties' tables, by which a ledger recognises equations that an earlier job disclosed.
        local_parties: the parties whose tables are available in this process; a party with labels is the first.
        encoded_parties: the same parties with weights of evidence in place of bins. If there are none, facts about
            columns are computed later, when weights of evidence are known.

    Returns:
        The sizes, and facts about the columns of tables that are available in this process.
    """
    woe, labels = job.prepare.woe, local_parties[0].y if local_parties else None
    with_columns = [party for party in (encoded_parties or local_parties) if party.columns]
    columns_final = woe is None or bool(encoded_parties)
    shares = job.protocol.shares
    opens_weights = shares is not None and shares.open_weights and job.model.loss.classifies and outputs == 1
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
            name: (module_parameters or {}).get(name) or job.model.parameters(d, outputs)
            for name, d in columns.items()
            if name != active
        },
        columns={active: columns[active]} | dict(columns),
        tables=dict(tables or {}),
        recovery_thresholds={
            party.name: numbers_for_recovery(party.X[schedule.sample(MAX_SAMPLE_ROWS)])
            for party in with_columns
            if columns_final
        },
        partition=schedule.name,
        bins={} if woe is None else {name: woe.counts(d) for name, d in columns.items() if name != active},
        label_bits=label_entropy(positive_rows(job, active, labels, schedule.train))
        if labels is not None and (woe is not None or opens_weights)
        else 1.0,
        singled_out={
            party.name: count_singled_out_rows(party, schedule, woe)
            for party in local_parties
            if woe is not None and party.columns and not party.active
        },
        helpers=helpers,
        information={
            party.name: InformationContent.of(party.X[schedule.sample(MAX_SAMPLE_ROWS)], party.columns)
            for party in with_columns
            if columns_final or shares is not None
        },
        rarest_label_rows=None if labels is None else _count_rarest_label(job, labels, schedule),
        openings=job.optimizer.count_openings(job.model, IterationIndices(schedule)) / max(1, len(schedule)),
    )


def _count_rarest_label(job: JobOptions, labels: NDArray[Any], schedule: Schedule) -> int | None:
    """Return the number of evaluated rows with the rarest label; None for a regression."""
    if not job.model.loss.classifies:
        return None
    rows = schedule.test if len(schedule.test) else schedule.batch_order
    return min(int((labels[rows] == label).sum()) for label in np.unique(labels))


def positive_rows(job: JobOptions, lead: str, labels: NDArray[Any], train: Rows) -> NDArray[np.bool_]:
    """Return which training rows are of the positive class.

    Both classes must occur, else LabelError is raised: a party that learned that one class is absent would know every
    label.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        lead: the party with labels.
        labels: labels of the table (m,).
        train: positions of the training rows.

    Returns:
        Whether each training row is of the positive class (n,).
    """
    classes = find_classes(lead, job.model.loss, labels, job.positive)
    check_split(job.model.loss, labels[train], labels[:0], classes)
    return np.asarray(labels[train] == classes[1])


def count_singled_out_rows(party: Party, schedule: Schedule, woe: Woe) -> int:
    """Return the number of rows that are alone in a bin, so that the bin's class count reveals their label."""
    return count_alone(BinIndicators(party.X[schedule.batch_order], woe.slots))
