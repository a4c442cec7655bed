"""What a training on shares gives away that its parties must agree to by name, before it begins.

*Opened weights.* Weights that were trained on shares follow from all labels, and from the columns of all parties. A
party that is told as many as there are labels may find each row's residual, and the party with labels from these the
others' part of each row. One that deviates has every bit of them say what it likes: from half of the bits on that the
labels, or the columns of another party, hold, the job must accept `opened_weights`.

*Small metrics.* Pairs (level, label) in a hidden order tell metrics, and of no row which pair is its own: but among
few rows, or few of a label, those of the most extreme own part are well placed, and repeated measurements of the same
rows tell them apart to a party that deviates.

*Scores.* c scores of k bits of a row, with the reason codes that a party told its weights may give beside them, are
weighed against what that other party's columns hold: from a fourth of it on they tell too much, and so do they where
one column holds half of it, or where several scores come together. The party that rounds them takes as many bits as
its own columns allow, unless the job names a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

from securevfl.disclosure.column_recovery import MAX_NUMBERS_PER_COLUMN
from securevfl.disclosure.counts import Disclosure, RunShape, earlier_share
from securevfl.disclosure.gradient_leaks import RANK
from securevfl.disclosure.leaks import Leak, LeakKind
from securevfl.families.shares.shares_disclosures import (
    LARGE_SCORES,
    count_measurements,
    count_weights,
    disclosed_score_bits,
    measured_rows,
)
from securevfl.families.shares.shares_job import SharesJob
from securevfl.families.shares.shares_plan import reason_code_bits, weight_levels
from securevfl.models import pair_metrics
from securevfl.options import JobOptions
from securevfl.protocols.score_ledger.limits import ROWS_PER_EVALUATION, SCORE_BIT_BUDGET
from securevfl.protocols.shares.score_label_pairs import MIN_PAIR_ROWS, MIN_ROWS_PER_LABEL

MAX_COLUMN_SHARE = 0.5  # of what columns hold

SMALL_METRICS = LeakKind(
    "small_metrics",
    "metrics of few rows, of few rows of a label, or of the same rows many times",
    "hold out more rows (test_fraction), or evaluate less",
    ("rank_matching", "marked_pairs"),
)

OPENED_WEIGHTS = LeakKind(
    "opened_weights",
    "weights that are told have half as many bits as labels, or another party's columns, hold, or more",
    "leave the party out of open_weights, fewer weights, or more rows",
    ("partial_score",),
)

EXACT_SCORES = LeakKind(
    "exact_scores",
    'scores of new rows are told as they are (scores = "exact")',
    'scores = "levels"',
    ("score_sums",),
)


def weight_leaks(
    job: SharesJob, counts: Sequence[Disclosure], sizes: RunShape, before: Sequence[Disclosure]
) -> Iterator[Leak]:
    """Yield the parties whose weights are opened to them and are as many as there are labels, or have half as many bits
    as labels hold, or as the columns of another party whose table is at hand."""
    bits, remedy = weight_levels(job, sizes.rows).bits, "leave it out of open_weights, or train fewer weights "
    remedy += "(fewer trees, a smaller depth, fewer columns) or on more rows"
    for name in sorted(sizes.columns.keys() & set(job.protocol.shares.open_weights)):
        count, of, told = count_weights(job, sizes, name), sizes.rows * sizes.outputs, list[str]()
        own = [each for each in counts if (each.group, each.learner) == ("weights", name) and each.capacity]
        labels = [earlier_share(each, before) for each in own if each.kind == "labels"]
        total = count + ceil(sum(labels) * of)
        if total >= of:
            yield Leak(
                RANK,
                name,
                f"its weights, which are opened to it, are {count} numbers for {of} "
                + ("residuals" if name == sizes.active else "labels")
                + (f" (with those of earlier jobs {total})" if total > count else "")
                + ", and can determine them"
                + (", and so the others' part of each row" if name == sizes.active else ""),
                remedy,
            )
            continue
        for each in own:
            share = each.share + earlier_share(each, before)
            if share >= MAX_NUMBERS_PER_COLUMN:
                whose = "labels" if each.kind == "labels" else f"columns of {each.about[0]}"
                told.append(f"{share:.0%} of what {whose} hold")
        if told:
            yield Leak(
                OPENED_WEIGHTS,
                name,
                f"its weights, which are opened to it, have {count * bits:,} bits, by which a party that deviates "
                f"reads what it likes, up to {' and '.join(told)} with those of earlier jobs",
                remedy,
                apart=True,
            )


def metric_leaks(job: JobOptions, sizes: RunShape) -> Iterator[Leak]:
    rows, times = measured_rows(sizes), count_measurements(job, sizes)
    if not rows:
        return
    few, pairs = [], pair_metrics.supports_pairs(job.model.loss)  # where not, one sum of losses is told
    if pairs and rows < MIN_PAIR_ROWS:
        few.append(f"metrics are of {rows} rows, fewer than {MIN_PAIR_ROWS}")
    if pairs and sizes.rarest_label_rows is not None and sizes.rarest_label_rows < MIN_ROWS_PER_LABEL:
        few.append(
            f"{sizes.rarest_label_rows} of the rows measured have the rarest label, fewer than {MIN_ROWS_PER_LABEL}"
        )
    if few:
        share = ceil(100 * MIN_PAIR_ROWS / (sizes.rows + sizes.held_out)) / 100
        enough = f" = {share}" if rows < MIN_PAIR_ROWS and sizes.held_out and share <= 0.5 else ""
        yield Leak(
            SMALL_METRICS,
            sizes.active,
            f"{' and '.join(few)}, so that rows of the most extreme values are told apart",
            f"hold out more rows (test_fraction{enough})",
            apart=True,
        )
    if times > (most := max(1, rows // ROWS_PER_EVALUATION)):
        yield Leak(
            SMALL_METRICS,
            sizes.active,
            f"metrics of the same {rows} rows are taken {times} times, more than {most}, by which a party that "
            "deviates tells rows apart",
            "use a larger evaluate_every or hold out more rows",
            apart=True,
        )


def score_leaks(job: SharesJob, sizes: RunShape, rounds: str) -> Iterator[Leak]:
    options = job.protocol.shares
    asker, c = options.scores_to or sizes.active, sizes.outputs
    if options.scores == "none":
        return
    if options.scores == "exact":
        what = "scores of new rows are exact, from which it reads columns of few values, and one column from few rows"
        yield Leak(EXACT_SCORES, asker, what, 'use scores = "levels"', apart=True)
        return
    levels = options.score_quantizer(job.model.loss.spacing)
    if c > 1:
        yield Leak(
            LARGE_SCORES,
            asker,
            f"{c} scores of a new row come together, from which the others' columns follow",
            'add scores = "none" to protocol.shares',
            apart=True,
        )
    for name, own in sizes.information.items():
        if name == asker:
            continue
        bits = (disclosed_score_bits(job, sizes, rounds) if name == rounds else levels.bits) * c
        codes = reason_code_bits(job, name, sizes.columns[name])
        if bits + codes > SCORE_BIT_BUDGET * own.bits:
            most = int((SCORE_BIT_BUDGET * own.bits - codes) / c)
            beside = f" and {job.reason_codes} reason codes {codes:.1f} more" if codes else ""
            fewer = "use fewer reason_codes, or " if codes else ""
            yield Leak(
                LARGE_SCORES,
                asker,
                f"scores of a new row tell up to {bits} bits{beside}, a row of {name} holds {own.bits:.1f}, a "
                f"fourth of which are {SCORE_BIT_BUDGET * own.bits:.1f}",
                f'{fewer}add score_bits = {most} or scores = "none" to protocol.shares'
                if most > 2
                else f'{fewer}add scores = "none" to protocol.shares',
                apart=True,
            )
        if own.max_share > MAX_COLUMN_SHARE:
            yield Leak(
                LARGE_SCORES,
                asker,
                f"a single column holds {own.max_share:.0%} of what a row of {name} does, and is read from scores",
                'add scores = "none" to protocol.shares, or bring more columns',
                apart=True,
            )
