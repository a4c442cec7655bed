"""Disclosures of a training on secret shares that a job must accept by name before it begins (*leaks*).

- *Opened weights*: weights depend on all labels and on all parties' columns, and a malicious party can encode any
  information in them. The job must accept `opened_weights` if a party learns weights with at least half as many bits as
  the labels, or as the columns of another party.
- *Small metrics*: pairs of a score and a label are opened in random order. If there are few rows, or few of a label, a
  party can match pairs to rows that are extreme in its columns. A malicious party can choose what measurements
  disclose, so all their bits count against the bits of the other parties' columns, at most `MAX_EVALUATION_SHARE` of
  them.
- *Scores*: a scored row discloses c scores of k bits for c model outputs, and *reason codes*, the names of the columns
  that affect the score most. Together they may disclose at most a fourth of the information in a row of another party's
  columns. The *rounder*, the party that rounds scores, uses as many bits as this allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

from securevfl.disclosure.column_recovery import MAX_NUMBERS_PER_COLUMN
from securevfl.disclosure.counts import COLUMN_BIT_GROUP, Disclosure, RunShape, earlier_share, in_column_bits
from securevfl.disclosure.gradient_leaks import RANK
from securevfl.disclosure.leaks import Leak
from securevfl.disclosure.outputs import Output
from securevfl.families.shares.shares_job import SharesJob
from securevfl.families.shares.shares_outputs import (
    EXACT_SCORES,
    LARGE_SCORES,
    MAX_EVALUATION_SHARE,
    OPENED_WEIGHTS,
    PAIRS,
    SMALL_METRICS,
    disclosed_score_bits,
)
from securevfl.families.shares.shares_plan import reason_code_bits
from securevfl.protocols.score_ledger.score_limits import SCORE_BIT_BUDGET, max_evaluations
from securevfl.protocols.shares.score_label_pairs import MIN_PAIR_ROWS, MIN_ROWS_PER_LABEL

MAX_COLUMN_SHARE = 0.5  # maximum share of the information in a row that a single column may contain


def weight_leaks(outputs: Sequence[Output], shape: RunShape, before: Sequence[Disclosure]) -> Iterator[Leak]:
    """Yield the leaks of parties that learn too many weights, or weights of too many bits.

    A party may have both leaks, and then both are yielded: a job that accepts only one of them is refused because of
    the other.

    Args:
        outputs: the values that the run discloses: which party receives which numbers, how often.
        shape: public sizes of the run: numbers of rows, batches, model outputs and columns of each party.
        before: disclosures of earlier jobs.

    Yields:
        The leaks.
    """
    remedy = (
        "leave it out of open_weights, or train fewer weights (fewer trees, a smaller depth, fewer columns) or on more "
        "rows"
    )
    weights, equations = [output for output in outputs if output.group == "weights"], shape.rows * shape.outputs
    for name in dict.fromkeys(output.receiver for output in weights):
        received = [output for output in weights if output.receiver == name]
        opened = [output.disclosure for output in received if output.capacity]
        earlier_labels = [earlier_share(item, before) for item in opened if item.kind == "labels"]
        count, bits = received[0].numbers, received[0].bits
        total = count + ceil(sum(earlier_labels) * equations)
        is_active = name == shape.active
        if total >= equations:
            yield Leak(
                RANK,
                name,
                f"its opened weights are {count} numbers for {equations} "
                + ("residuals" if is_active else "labels")
                + (f" (with those of earlier jobs {total})" if total > count else "")
                + ", which can determine them"
                + (", and so the other parties' outputs for each row" if is_active else ""),
                remedy,
            )
        shares = []
        for item in opened:
            share = item.share + earlier_share(item, before)
            if share >= MAX_NUMBERS_PER_COLUMN:
                subject = "labels" if item.kind == "labels" else f"columns of {item.about[0]}"
                shares.append(f"{share:.0%} of the information in the {subject}")
        if shares:
            yield Leak(
                OPENED_WEIGHTS,
                name,
                f"its weights, which are opened to it, have {count * bits:,} bits; a malicious party chooses what they "
                f"disclose, up to {' and '.join(shares)} with those of earlier jobs",
                remedy,
                apart=True,
            )


def metric_leaks(outputs: Sequence[Output], shape: RunShape, before: Sequence[Disclosure] = ()) -> Iterator[Leak]:
    """Yield a leak for metrics of few rows, for many measurements of the same rows, and for many bits about columns.

    Args:
        outputs: the values that the run discloses: which party receives which numbers, how often.
        shape: public sizes of the run: numbers of rows, batches, model outputs and columns of each party.
        before: disclosures of earlier jobs about the same tables, to any party.

    Yields:
        The leaks.
    """
    for output in outputs:
        if SMALL_METRICS.name in output.leaks:
            yield from _small_metrics(output, shape)
    measured = [output for output in outputs if output.group == COLUMN_BIT_GROUP]
    share = sum(output.disclosure.share for output in measured)
    earlier = sum(item.share for item in before if in_column_bits(item))
    if share + earlier > MAX_EVALUATION_SHARE + 1e-9:
        together = f", and {share + earlier:.1%} with earlier jobs" if earlier else ""
        yield Leak(
            SMALL_METRICS,
            measured[0].receiver,
            f"a malicious party chooses what evaluations disclose: up to {share:.1%} of the bits of the columns of "
            f"{' or '.join(measured[0].about)}{together}, and the limit is {MAX_EVALUATION_SHARE:.0%}",
            "use larger tables, or hold out fewer rows and evaluate less often",
            apart=True,
        )


def _small_metrics(output: Output, shape: RunShape) -> Iterator[Leak]:
    rows, times, reasons = output.rows, output.times, []
    opens_pairs = output.name == PAIRS  # a sum of losses does not show which rows are extreme
    if opens_pairs and rows < MIN_PAIR_ROWS:
        reasons.append(f"metrics are of {rows} rows, fewer than {MIN_PAIR_ROWS}")
    if opens_pairs and shape.rarest_label_rows is not None and shape.rarest_label_rows < MIN_ROWS_PER_LABEL:
        reasons.append(
            f"{shape.rarest_label_rows} of the measured rows have the rarest label, fewer than {MIN_ROWS_PER_LABEL}"
        )
    if reasons:
        fraction = ceil(100 * MIN_PAIR_ROWS / (shape.rows + shape.held_out)) / 100
        enough = f" = {fraction}" if rows < MIN_PAIR_ROWS and shape.held_out and fraction <= 0.5 else ""
        yield Leak(
            SMALL_METRICS,
            output.receiver,
            f"{' and '.join(reasons)}, so that rows with the most extreme values can be identified",
            f"hold out more rows (test_fraction{enough})",
            apart=True,
        )
    if times > (limit := max_evaluations(rows)):
        yield Leak(
            SMALL_METRICS,
            output.receiver,
            f"metrics of the same {rows} rows are measured {times} times, more than {limit}; a malicious party can "
            "identify rows by that",
            "hold out more rows, or evaluate less often (a larger evaluate_every, or no optimizer.early_stop)",
            apart=True,
        )


def score_leaks(job: SharesJob, shape: RunShape, rounder: str) -> Iterator[Leak]:
    """Yield a leak if the scores of a new row can disclose too much about another party's columns.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        shape: public sizes of the run: numbers of rows, batches, model outputs and columns of each party.
        rounder: the party that rounds scores.
    """
    options = job.protocol.shares
    requester, c = options.scores_to or shape.active, shape.outputs
    if options.scores == "none":
        return
    if options.scores == "exact":
        reason = "scores of new rows are exact and reveal low-cardinality columns, and any column from a few rows"
        yield Leak(EXACT_SCORES, requester, reason, 'use scores = "levels"', apart=True)
        return
    quantizer = options.score_quantizer(job.model.loss.spacing)
    if c > 1:
        yield Leak(
            LARGE_SCORES,
            requester,
            f"the {c} scores of one new row, one for each output of the model, together determine the other parties' "
            "columns",
            'add scores = "none" to protocol.shares',
            apart=True,
        )
    for name, information in shape.information.items():
        if name == requester:
            continue
        bits = (disclosed_score_bits(job, shape, rounder) if name == rounder else quantizer.bits) * c
        code_bits = reason_code_bits(job, name, shape.columns[name])
        budget = SCORE_BIT_BUDGET * information.bits
        if bits + code_bits > budget:
            limit = int((budget - code_bits) / c)
            codes = f" and {job.reason_codes} reason codes {code_bits:.1f} more" if code_bits else ""
            fewer_codes = "use fewer reason_codes, or " if code_bits else ""
            remedy = f'score_bits = {limit} or scores = "none"' if limit > 2 else 'scores = "none"'
            yield Leak(
                LARGE_SCORES,
                requester,
                f"scores of a new row disclose up to {bits} bits{codes}; a row of {name} contains "
                f"{information.bits:.1f} bits, and its scores may disclose a quarter of that, {budget:.1f} bits",
                f"{fewer_codes}add {remedy} to protocol.shares",
                apart=True,
            )
        if information.max_share > MAX_COLUMN_SHARE:
            yield Leak(
                LARGE_SCORES,
                requester,
                f"a single column contains {information.max_share:.0%} of the information in a row of {name}, and can "
                "be read from scores",
                'add scores = "none" to protocol.shares, or bring more columns',
                apart=True,
            )
