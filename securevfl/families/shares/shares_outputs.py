"""The disclosures of a training on secret shares, as a list of outputs, and the leaks that a job must accept by name.

An *output* is something that a run discloses to a party (`securevfl.disclosure.outputs`). An evaluation *opens* one sum
of losses, and the last one also (score, label) pairs. Scores of new rows are rounded to a few bits by one party, the
*rounder*. Weights are opened only to the parties in the option `open_weights`.

The active party could choose its tables and labels so that sums, pairs and counts reveal other parties' columns. They
are therefore counted in bits about the columns of all other parties. The active party has the labels, passive parties
have none. The *partner* is the passive party that holds shares of all values together with the active party.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from securevfl.disclosure.counts import COLUMN_BIT_GROUP, Kind, RunShape
from securevfl.disclosure.gradient_leaks import RANK
from securevfl.disclosure.leaks import LeakKind
from securevfl.disclosure.outputs import Output
from securevfl.families.evaluations import EvaluationSchedule, evaluated_rows
from securevfl.families.shares.chunk_division import number_of_counts
from securevfl.families.shares.shares_job import SharesJob, opens_pairs
from securevfl.families.shares.shares_plan import reason_code_bits, weight_levels
from securevfl.models.inputs import InputShape
from securevfl.models.pair_metrics import code_bits
from securevfl.protocols.score_ledger.score_limits import SCORE_BIT_BUDGET
from securevfl.protocols.shares.opened_loss import LOSS_SUM_BITS, MAX_LOSS_ROWS, MIN_LOSS_ROWS
from securevfl.protocols.shares.range_count import COUNT_BITS, MAX_COUNTED_SUMS
from securevfl.protocols.shares.word_shuffle import multiset_bits

LOSS_SUMS = "sums of losses"
PAIRS = "pairs of a score and a label in random order"

MAX_EVALUATION_SHARE = 0.07
"""Share of the bits of a table's columns that evaluations of all jobs and peers may disclose together.

It is the smallest whole percentage under which the default job runs on every table of
`python -m benchmarks.evaluation_bits`. The largest share there is 6.4 %: 846 rows with four classes.
"""

LARGE_SCORES = LeakKind(
    "scores",
    "scores of new rows disclose more than a fourth of the information in another party's columns, one column has more "
    "than half of it (its weight in the model is not checked), or the model has several outputs",
    'fewer bits in a score (score_bits), or scores = "none"',
    ("score_sums", "linked_outputs"),
)

SMALL_METRICS = LeakKind(
    "small_metrics",
    "metrics of few rows, of few rows of a label, of the same rows many times, or of many bits about columns",
    "hold out more rows (test_fraction), or evaluate less often",
    ("rank_matching", "marked_pairs"),
)

OPENED_WEIGHTS = LeakKind(
    "opened_weights",
    "opened weights have at least half as many bits as the labels, or as another party's columns",
    "leave the party out of open_weights, fewer weights, or more rows",
    ("partial_score",),
)

EXACT_SCORES = LeakKind(
    "exact_scores",
    'exact scores of new rows are disclosed (scores = "exact")',
    'scores = "levels"',
    ("score_sums",),
)


def disclosed_score_bits(job: SharesJob, shape: RunShape, rounder: str) -> int:
    """Return the number of bits in each score of a new row.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        shape: public sizes of the run: numbers of rows, batches, model outputs and columns of each party.
        rounder: the party that rounds scores. If its table is in this process, a score has at most a quarter of the
            bits that a row of the table contains.

    Returns:
        The number of bits; the largest possible number if the table is not in this process.
    """
    information = shape.information.get(rounder)
    codes = reason_code_bits(job, rounder, shape.columns[rounder])
    limit = inf
    if information is not None and LARGE_SCORES.name not in job.accepts:
        limit = (SCORE_BIT_BUDGET * information.bits - codes) / shape.outputs
    return job.protocol.shares.permitted_quantizer(job.model.loss.spacing, limit).bits


def measurements_of(job: SharesJob, shape: RunShape) -> int:
    """Return the largest number of measurements (evaluations of the model) in a run with these public sizes."""
    return EvaluationSchedule.of_run(job, shape).remaining(shape.start)


def measured_rows(shape: RunShape) -> int:
    """Return the number of rows on which metrics are measured; 0 if there are too few."""
    rows = min(evaluated_rows(shape), MAX_LOSS_ROWS // shape.outputs)
    return rows if rows >= MIN_LOSS_ROWS else 0


def count_weights(job: SharesJob, shape: RunShape, name: str) -> int:
    """Return the number of weights of a party, for all model outputs together."""
    active, opened = name == shape.active, name in job.protocol.shares.open_weights
    inputs = InputShape(active, shape.columns[name], shape.outputs, len(shape.columns), shape.rows, opened)
    return job.model.breadth(inputs) * shape.outputs


def shares_outputs(job: SharesJob, shape: RunShape) -> list[Output]:
    """List the opened sums of losses, pairs, counts of out-of-range rows, and weights."""
    outputs = [range_count_output(job, shape), loss_output(job, shape)]
    outputs += [pair_output(job, shape)] if opens_pairs(job, measured_rows(shape)) else []
    return [output for output in [*outputs, *weight_outputs(job, shape)] if output.count]


def _about_columns(job: SharesJob, shape: RunShape) -> dict[str, Any]:
    """Return the attributes of outputs that are counted in bits about the columns of the passive parties.

    The active party can choose whose columns the bits are about, so all of them count for each passive party. The
    capacity is the number of bits that the columns of a passive party contain, of the party with the fewest among
    those whose tables are available in this process.
    """
    known = [shape.information[party].bits for party in shape.passives if party in shape.information]
    return {
        "kind": "columns",
        "receiver": shape.active,
        "about": shape.passives,
        "capacity": max(1, int(min(known) * (shape.rows + shape.held_out))) if known else 0,
        "giver": partner_of(job, shape.passives, shape.columns),
        "group": COLUMN_BIT_GROUP,
    }


def range_count_output(job: SharesJob, shape: RunShape) -> Output:
    """Return the output that counts training rows with scores outside the range of the lookup tables."""
    times = number_of_counts(job)
    rows = min(shape.rows, MAX_COUNTED_SUMS // shape.outputs)
    return Output(
        "counts of rows out of range",
        occasion="count",
        times=times,
        count=times * COUNT_BITS,
        rows=rows,
        numbers=1,
        bits=COUNT_BITS,
        words=f"how many of {rows:,} rows had too large a score",
        explanation="A score is too large if the training cannot compute with it correctly.",
        **_about_columns(job, shape),
    )


def pair_output(job: SharesJob, shape: RunShape) -> Output:
    """Return the output of (rounded score, label) pairs in random order, which determine metrics of the final model."""
    rows, loss = measured_rows(shape), job.model.loss
    bits = job.protocol.shares.pair_bits(classifies=loss.classifies, code_bits=code_bits(loss))
    count = shape.outputs * multiset_bits(rows, bits) if rows else 0
    return Output(
        PAIRS,
        occasion="evaluation",
        times=1,
        count=count,
        rows=rows,
        numbers=rows * shape.outputs,
        bits=bits,
        words=f"pairs of a score and a label of {rows:,} rows, in random order",
        explanation=f"{shape.active} has the labels of the pairs already. Because of the random order, all pairs "
        f"together reveal at most {count:,} bits about columns.",
        leaks=(SMALL_METRICS.name,),
        **_about_columns(job, shape),
    )


def loss_output(job: SharesJob, shape: RunShape) -> Output:
    """Return the output of sums of losses, one for each evaluated model."""
    rows = measured_rows(shape)
    # a run that resumes after its last iteration still measures the final model, hence at least 1
    times = max(1, measurements_of(job, shape)) if rows else 0
    return Output(
        LOSS_SUMS,
        occasion="evaluation",
        times=times,
        count=times * LOSS_SUM_BITS,
        rows=rows,
        numbers=1,
        bits=LOSS_SUM_BITS,
        words=f"sum of the prediction errors of all {rows:,} rows",
        explanation="A prediction error states how wrong one prediction is.",
        leaks=(SMALL_METRICS.name,),
        **_about_columns(job, shape),
    )


def weight_outputs(job: SharesJob, shape: RunShape) -> list[Output]:
    """List the opened weights, whose bits are about labels and about the columns of other parties.

    Bits about labels are compared with the number of bits in all labels. For another party's columns, the capacity is
    the number of weights that would have as many bits as these columns have in all rows.
    """
    outputs, bits = [], weight_levels(job, shape.rows).bits
    labels = max(1, int(shape.rows * shape.bits_of_a_label))
    for name in sorted(shape.columns.keys() & set(job.protocol.shares.open_weights)):
        count = count_weights(job, shape, name)

        def opened(kind: Kind, about: str, total: int, capacity: int, name: str = name, count: int = count) -> Output:
            return Output(
                "opened weights",
                kind,
                name,
                (about,),
                "end",
                1,
                total,
                capacity,
                numbers=count,
                bits=bits,
                group="weights",
                leaks=(OPENED_WEIGHTS.name, RANK.name),
            )

        if name != shape.active:
            outputs.append(opened("labels", shape.active, count * bits, labels))
        for other in shape.columns:
            if other != name:
                information = shape.information.get(other)
                capacity = 0 if information is None else max(1, int(information.bits * shape.rows / bits))
                outputs.append(opened("columns", other, count, capacity))
    return outputs


def partner_of(job: SharesJob, passives: Sequence[str], columns: Mapping[str, int]) -> str:
    """Return the partner: the passive party that the job names, or the one with the most columns.

    Of parties with equally many columns it is the first one by name, so that all parties and sheets agree on it.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        passives: names of the passive parties.
        columns: number of columns of each party; empty if unknown.

    Returns:
        The name of the partner.
    """
    chosen = job.protocol.shares.partner
    if chosen is not None and chosen in passives:
        return chosen
    return max(sorted(passives), key=lambda name: columns.get(name, 0))


def rounding_party(job: SharesJob, shape: RunShape) -> str:
    """Return the party that rounds scores: the partner, or the active party if the partner receives the scores."""
    partner = partner_of(job, shape.passives, shape.columns)
    return shape.active if job.protocol.shares.scores_to == partner else partner
