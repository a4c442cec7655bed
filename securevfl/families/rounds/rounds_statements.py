"""What a party of a training by rounds can learn from its messages, in words for its consent sheet.

The active party has the labels, passive parties have none. n is the number of rows of a batch, c the number of outputs
of a row, p the number of weights of a party, d its number of columns. To open a gradient means that the active party
decrypts it for a passive party. Weights of evidence are the log odds of the classes in the bins of a column.
"""

from __future__ import annotations

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.data.location_scale import moments
from securevfl.data.schedule import Schedule
from securevfl.disclosure.column_recovery import MAX_SAMPLE_ROWS, variance_share
from securevfl.disclosure.label_auc import expected_label_auc
from securevfl.disclosure.leverage import measure_leverage
from securevfl.disclosure.outputs import disclosures_of
from securevfl.families.facts import RunFacts
from securevfl.families.family_types import SheetStatement
from securevfl.families.rounds.rounds_job import RoundsJob
from securevfl.options import JobOptions

MEASURED_BATCHES = 8  # number of batches from which the disclosed share of the columns' variance is estimated


def active_statements(job: JobOptions, party: str, facts: RunFacts | None) -> list[SheetStatement]:
    """State what the active party learns: outputs, and what they disclose about the others' columns."""
    outputs = "f and every Z_k" if job.model.separates_outputs else "the score f = sum_k H_k"
    lines = [
        f"{outputs} of each predicted row, and the messages that --details marks as output or plain",
        *single_output_lines(job, facts, "the forward outputs H_k of a passive party, in the clear"),
        *column_lines(job, party, facts),
    ]
    statements = [("learns", line) for line in lines]
    if job.protocol.seals and job.model.by_column:
        statements.append(("opens", "\n".join(_isolated_rows_of_others(job, facts))))
    return statements


def passive_statements(job: RoundsJob, party: str, facts: RunFacts | None) -> list[SheetStatement]:
    """State what a passive party learns from residuals and from its part of the model."""
    residual = job.protocol.residual
    sends = single_output_lines(job, facts, "its forward outputs H_k, in the clear, to the party with labels")
    sent = [("sends", "\n".join(sends))] if sends else []
    if residual.seals:
        lines = [*equation_lines(job, party, facts), *_bin_lines(job, party, facts)]
    else:
        lines = [residual.passive_view, *column_lines(job, party, facts)]
    return [*(("learns", line) for line in lines), *sent, *classifier_statements(job)]


def single_output_lines(job: JobOptions, facts: RunFacts | None, values: str) -> list[str]:
    """State that the party with labels reads the outputs H_k of each passive party; empty if a sum hides them.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        facts: the facts of the run; without them, the number of passive parties is unknown.
        values: a description of the outputs, with which the first line begins.

    Returns:
        Lines for the consent sheet.
    """
    hides_parts = job.protocol.sum_for(2).hides_parts
    if facts is None and hides_parts:
        reason = "if there is one passive party: a sum over one party is that party's outputs"
    elif facts is not None and len(facts.shape.passives) == 1:
        reason = "because a sum over one party is that party's outputs"
    elif hides_parts:
        return []
    else:
        reason = "because a direct sum hides no part of it"
    return [f"{values}, {reason}" + ("; only the residual is encrypted" if job.protocol.seals else "")]


def classifier_statements(job: JobOptions) -> list[SheetStatement]:
    """State what a party without labels can infer from its part of a classifier; empty for a regression."""
    if not job.model.loss.classifies:
        return []
    return [
        (
            "keeps",
            "its weights, and so its part X_k theta_k, which ranks the labels about as well as its columns can\n"
            "under any protocol: with an AUC of 0.71 to 0.99 on public tables",
        )
    ]


def equation_lines(job: JobOptions, party: str, facts: RunFacts | None) -> list[str]:
    """State what an opened gradient discloses about labels to a passive party."""
    if facts is None:
        return [
            "its gradient: p equations about the n x c residuals of a batch; the share p / (n * c) "
            "of the labels' variance is revealed, less with larger batches"
        ]
    shape, schedule, X = facts.shape, facts.schedule, facts.table(party)
    p, share = shape.parameters[party], shape.parameters[party] / shape.residuals
    batches = "batch" if schedule.batches == 1 else f"{schedule.batches} batches"
    repetition = f"new in each of {job.epochs} epochs"
    if job.equations_change:
        reason = "J changes" if not job.model.static_jacobian else "rows get new weights"
        repetition = f"different in each of {job.equations} local steps of a run because {reason}"
    elif not job.reshuffle:
        repetition = f"the same {batches} every epoch"
    auc = expected_label_auc(p, shape.smallest_batch, shape.outputs, job.equations, job.equations > 1)
    return [
        f"its gradient: p = {p} equations about n x c = {shape.residuals} residuals (errors) of a batch, "
        f"{repetition}. A gradient reveals the share p / (n * c) = {share:.3f} of the differences between labels, and "
        f"less if batches are larger. In the whole run it opens {_opened_numbers(facts, party):,} numbers, about "
        f"residuals that change; with columns of pure noise they would rank labels with an AUC of {auc:.2f} (0.5 is "
        "chance, 1 is perfect), and with real columns better",
        *(_isolated_row_lines(job, X, schedule) if job.model.by_column and X is not None else ()),
    ]


def _opened_numbers(facts: RunFacts, party: str) -> int:
    """Return how many numbers of its gradients a passive party opens in a complete run."""
    key = "labels", party, "training"
    return sum(item.total_numbers for item in facts.outputs if (item.kind, item.receiver, item.group) == key)


def _bin_lines(job: JobOptions, party: str, facts: RunFacts | None) -> list[str]:
    """State what the class counts of its bins disclose to a passive party; empty without weights of evidence."""
    if job.prepare.woe is None:
        return []
    counts = "for each of its bins the number of rows of the positive class, for weights of evidence"
    if facts is None:
        return [f"{counts}; if all rows of a bin have one class, the count discloses their labels"]
    shape = facts.shape
    bins = next(item for item in facts.outputs if item.group == "bins" and item.receiver == party)
    return [
        f"{counts}: "
        f"{bins.numbers} numbers of {bins.bits} bits, with check values. Whatever this party requests, they disclose "
        f"at most {bins.count:,} bits of the {bins.capacity:,} bits in the labels of {shape.rows:,} rows "
        f"({bins.disclosure.share:.3f}); if all rows of a bin have one class, its count discloses their labels",
    ]


def column_lines(job: JobOptions, learner: str, facts: RunFacts | None) -> list[str]:
    """State what the numbers that a party receives in a run disclose about the columns of others.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        learner: the party that receives the numbers, and to whom the sheet belongs.
        facts: the facts of the run; without them, the lines contain formulas.

    Returns:
        Lines for the consent sheet.
    """
    if facts is None:
        return [
            "T * c numbers about each row in T exchanges and evaluations, which reveal T * c / d of the dimensions of "
            "the d columns in the sum, and more of their variance; d / 2 numbers, or fewer, can be enough to find the "
            "columns"
        ]
    shape, schedule = facts.shape, facts.schedule
    groups = {"training": schedule.partition(0)[:MEASURED_BATCHES], "held out": [schedule.test[:MAX_SAMPLE_ROWS]]}
    lines: list[str] = []
    c = job.model.output_width(shape.outputs)
    for item in disclosures_of(facts.outputs):
        if item.kind != "columns" or item.learner != learner:
            continue
        tables = [X for name in item.about if (X := facts.table(name)) is not None]
        variance = ""
        if len(tables) == len(item.about):
            share = max(variance_share(np.hstack([X[rows] for X in tables]), item.count) for rows in groups[item.group])
            variance = f", and up to {share:.2f} of the differences between rows"
        enough = item.count >= shape.recovery_threshold(item.about)
        lines += [
            f"{item.count // c} x {c} numbers about each {item.group} row. They reveal {min(1.0, item.share):.2f} of "
            f"the dimensions of the {item.capacity} columns of {', '.join(item.about)}{variance}. This is "
            + (
                "enough to compute the columns"
                if enough
                else "too little to compute most columns, but the first number already shows columns that are "
                "correlated with the label"
            ),
        ]
    return lines


def _isolated_rows_of_others(job: JobOptions, facts: RunFacts | None) -> list[str]:
    """Return lines for the party with labels: which labels the gradients of other parties nearly reveal to them."""
    tables = [] if facts is None else [(name, facts.table(name)) for name in facts.shape.passives]
    lines = [
        f"{name}: {line}"
        for name, X in tables
        if facts is not None and X is not None
        for line in _isolated_row_lines(job, X, facts.schedule)
    ]
    if facts is not None and all(X is not None for _, X in tables):
        return lines or ["no label of a row that is nearly unique in another party's columns"]
    return [
        "the labels of rows that are nearly unique in another party's columns (rare values), to that party;",
        "only that party can count them: ask it for this line of its sheet",
    ]


def _isolated_row_lines(job: JobOptions, X: Floats, schedule: Schedule) -> list[str]:
    """Return a line if rows of the party are nearly unique in their batches; otherwise no line."""
    mean, deviation = moments(X, schedule.batch_order)[:2] if job.scale == "standard" else (np.zeros(1), np.ones(1))
    divisor = np.where(deviation > 0, deviation, np.inf)
    leverage = measure_leverage((X[rows] - mean) / divisor for rows in schedule.partition(0))
    if not leverage.singled_out:
        return []
    return [
        f"{leverage.singled_out} rows of {leverage.rows} are nearly unique (rare values, leverage up to "
        f"{leverage.largest:.2f}): the gradient nearly reveals their residuals, and so their labels"
    ]
