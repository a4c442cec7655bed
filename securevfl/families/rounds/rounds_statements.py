"""What a participant of training by rounds can infer from its messages, in words for the consent sheet."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.data.location_scale import moments
from securevfl.data.schedule import Schedule
from securevfl.disclosure.column_recovery import MAX_SAMPLE_ROWS, variance_share
from securevfl.disclosure.counts import Disclosure, RunShape
from securevfl.disclosure.label_auc import expected_label_auc
from securevfl.disclosure.leverage import measure_leverage
from securevfl.families.family import O, SheetStatement
from securevfl.families.rounds.rounds_disclosures import bin_disclosures, count_opened_numbers, rounds_disclosures
from securevfl.families.rounds.rounds_job import RoundsJob
from securevfl.families.run_facts import RunFacts
from securevfl.options import JobOptions
from securevfl.protocols.bin_classes import count_bits

MEASURED_BATCHES = 8  # of a partition that are measured


def active_statements(job: JobOptions, party: str, known: RunFacts | None) -> list[SheetStatement]:
    """Describe in words what the active party learns: scores, and what these tell of the others' columns."""
    what = "f and every Z_k" if job.model.separates_outputs else "f = sum_k H_k"
    scores = f"{what} on the rows predicted, and messages marked output or plain"
    found = [("learns", "\n".join([scores, *column_lines(job, party, known, rounds_disclosures)]))]
    opens = job.protocol.seals and job.model.by_column
    return found + ([("opens", "\n".join(_isolated_rows_of_others(job, known)))] if opens else [])


def passive_statements(job: RoundsJob, party: str, known: RunFacts | None) -> list[SheetStatement]:
    """Describe in words what a passive party learns by the kind of residual, and what its own part tells it."""
    residual = job.protocol.residual
    lines = (
        [*equation_lines(job, party, known), *_bin_lines(job, party, known)]
        if residual.seals
        else [residual.passive_view]
    )
    if not residual.seals:
        lines += column_lines(job, party, known, rounds_disclosures)
    found = [("learns", "\n".join(lines))]
    return found + classifier_statements(job)


def classifier_statements(job: JobOptions) -> list[SheetStatement]:
    """Describe in words what a party without labels keeps of a classifier; empty for a loss of numbers."""
    if not job.model.loss.classifies:
        return []
    return [
        (
            "keeps",
            "its weights, so its own part X_k theta_k, which ranks the labels about as well as its columns can,\n"
            "whatever the protocol: to an AUC of 0.71 to 0.99 on public tables",
        )
    ]


def equation_lines(job: JobOptions, party: str, known: RunFacts | None) -> list[str]:
    """Describe in words what an opened gradient tells a passive party of labels."""
    if known is None:
        return [
            "its own gradient: p equations about the n x c residuals of a batch; the share p / (n c)",
            "projects the labels and is a leak that larger batches make smaller",
        ]
    sizes, schedule, X = known.sizes, known.schedule, known.table(party)
    p, share = sizes.parameters[party], sizes.parameters[party] / sizes.residuals
    batches = "batch" if schedule.batches == 1 else f"{schedule.batches} batches"
    times = f"new in each of {job.epochs} epochs"
    if job.equations_change:
        why = "J moves" if not job.model.static_jacobian else "rows are weighed anew"
        times = f"others in each of {job.equations} local steps of a run, as {why}"
    elif not job.reshuffle:
        times = f"the same {batches} every epoch"
    auc = expected_label_auc(p, sizes.smallest_batch, sizes.outputs, job.equations, job.equations > 1)
    return [
        f"its own gradient: p = {p} equations about n x c = {sizes.residuals} residuals a batch, {times};",
        f"the share p / (n c) = {share:.3f} projects the labels: a leak that larger batches make smaller.",
        f"In {job.epochs} epochs it opens {count_opened_numbers(sizes, party):,} numbers, about residuals that move.",
        f"from columns of noise it tells labels to an AUC of {auc:.2f}, from real columns to more",
        *(_isolated_row_lines(job, X, schedule) if job.model.by_column and X is not None else ()),
    ]


def _bin_lines(job: JobOptions, party: str, known: RunFacts | None) -> list[str]:
    """Describe in words what the counts in its bins tell a passive party of labels; empty where the job has none."""
    if job.prepare.woe is None:
        return []
    what = "for each of its bins how many of its rows are of the positive class, for weights of evidence"
    if known is None:
        return [f"{what}; a bin of one class is", "the labels of its rows"]
    sizes = known.sizes
    told = next(item for item in bin_disclosures(job, sizes) if item.learner == party)
    return [
        f"{what}:",
        f"{sizes.bins[party]} words of {count_bits(sizes.rows)} bits and checks, {told.count:,} bits of the "
        f"{told.capacity:,} "
        "that the labels of",
        f"{sizes.rows:,} rows hold ({told.share:.3f}), whatever it asks; a bin of one class is the labels of its rows",
    ]


def column_lines(
    job: O, learner: str, known: RunFacts | None, count: Callable[[O, RunShape], list[Disclosure]]
) -> list[str]:
    """Describe in words what the numbers that a party receives in a run, as a method counts them, tell of other
    parties' columns."""
    if known is None:
        return [
            "T c numbers about each row in T exchanges and evaluations: T c / d of the dimensions of the d",
            "columns behind them, and more of their variance; from half of d on, or fewer, these columns",
        ]
    sizes, schedule = known.sizes, known.schedule
    groups = {"training": schedule.partition(0)[:MEASURED_BATCHES], "held out": [schedule.test[:MAX_SAMPLE_ROWS]]}
    lines: list[str] = []
    c = job.model.output_width(sizes.outputs)
    for item in count(job, sizes):
        if item.kind != "columns" or item.learner != learner:
            continue
        behind = [X for name in item.about if (X := known.table(name)) is not None]
        most = ""
        if len(behind) == len(item.about):
            share = max(variance_share(np.hstack([X[rows] for X in behind]), item.count) for rows in groups[item.group])
            most = f", up to {share:.2f} of their variance"
        enough, few = "enough to find them", "too few to find most, but what goes with the label shows from the first"
        lines += [
            f"T c = {item.count // c} x {c} numbers about each {item.group} row: "
            f"{min(1.0, item.share):.2f} of the dimensions of the {item.capacity} columns",
            f"of {', '.join(item.about)}{most}: "
            + (enough if item.count >= sizes.recovery_threshold(item.about) else few),
        ]
    return lines


def _isolated_rows_of_others(job: JobOptions, known: RunFacts | None) -> list[str]:
    """Describe in words what the party with labels is told of rows that stand nearly alone in other parties'
    columns."""
    tables = [] if known is None else [(name, known.table(name)) for name in known.sizes.passives]
    found = [
        f"{name}: {line}"
        for name, X in tables
        if known is not None and X is not None
        for line in _isolated_row_lines(job, X, known.schedule)
    ]
    if known is not None and len([X for _, X in tables if X is not None]) == len(tables):
        return found or ["no label by a row that stands alone in another party's columns"]
    return [
        "the labels of rows that stand nearly alone in another party's columns (rare values) to that party,",
        "which alone sees how many there are: ask it for that line of its sheet",
    ]


def _isolated_row_lines(job: JobOptions, X: Floats, schedule: Schedule) -> list[str]:
    """Return a further line if rows of the party stand nearly alone in their batches; empty otherwise."""
    mean, deviation = moments(X, schedule.batch_order)[:2] if job.scale == "standard" else (np.zeros(1), np.ones(1))
    found = measure_leverage(
        (X[rows] - mean) / np.where(deviation > 0, deviation, np.inf) for rows in schedule.partition(0)
    )
    if not found.singled_out:
        return []
    return [
        f"{found.singled_out} rows of {found.rows} stand nearly alone (rare values, leverage up to "
        f"{found.largest:.2f}): "
        "their residual, and so label, is nearly opened"
    ]
