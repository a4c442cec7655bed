"""The disclosures of a training on secret shares, in words for the parties' consent sheets.

A consent sheet lists what a party sends and learns. Evaluations open (disclose to the party with labels) sums of losses
and, for the final model, pairs of a rounded score and a label. A lookup table converts the output of a row to its
residual; outputs outside its range get wrong residuals. One party, the rounder, rounds scores of new rows to a few
bits. The *capacity* of a disclosure is the number of bits of the data that it is about.
"""

from __future__ import annotations

import numpy as np

from securevfl.disclosure.counts import COLUMN_BIT_GROUP, RunShape
from securevfl.disclosure.outputs import Output
from securevfl.families.facts import RunFacts
from securevfl.families.shares.shares_job import SharesJob
from securevfl.families.shares.shares_outputs import (
    LOSS_SUMS,
    MAX_EVALUATION_SHARE,
    PAIRS,
    disclosed_score_bits,
    rounding_party,
)
from securevfl.families.shares.shares_plan import can_roll_back
from securevfl.models.loss import Loss, NumberLoss

_WEIGHTS_TEXT = """\
its own weights, as the job permits, and so the outputs X_k theta_k of its columns, which rank the labels
about as well as its columns can: with an AUC of 0.71 to 0.99 on public tables"""

_WEIGHT_BITS_TEXT = """\
They are rounded at random; a
malicious party can choose what {total:,} bits disclose about the labels and the others' columns"""

_SCORES_TEXT = """\
{asker} can combine a score with its own columns. If one column of another party has most of the
weight in the model, or if several of its columns rise and fall together, {asker} can then read most of a column. A
model scores a row once and returns the same score if it is asked again. It never scores a row of the training"""

_UNPROVEN_TEXT = """\
the maximum for pairs is not proven if the program of {active} also sends wrong numbers while the pairs are shuffled. \
"""

PAIRS_TEXT = """\
sums of losses, counts of rows out of range, and pairs of a score and a label in random order"""

PAIR_SCORES_TEXT = """\
the requester can choose which combination of your components a score shows. All scores of models with
pairs together may disclose a fourth of the bits of your training rows"""

SCORE_PARTS_TEXT = """\
{asker} learns its own weights and scores: a score without its own part is the sum of the
others' parts, for every scored row"""


def weights_text(party: str, facts: RunFacts | None) -> str:
    """Return words for a party's consent sheet: what it learns from its weights, if the job opens them to it."""
    if facts is None:
        return _WEIGHTS_TEXT
    output = next(item for item in facts.outputs if item.group == "weights" and item.receiver == party)
    return f"{_WEIGHTS_TEXT}. {_WEIGHT_BITS_TEXT.format(total=output.total_numbers * output.bits)}"


def scores_text(job: SharesJob, shape: RunShape | None, asker: str) -> str:
    """Return words for the consent sheet of `asker`: what it learns from scores of new rows."""
    options, consequences = job.protocol.shares, _SCORES_TEXT.format(asker=asker)
    if options.scores == "exact":
        return f"exact scores of new rows: enough of them determine the others' columns. {consequences}"
    quantizer = options.score_quantizer(job.model.loss.spacing)
    bits = quantizer.bits if shape is None else disclosed_score_bits(job, shape, rounding_party(job, shape))
    step, limit = quantizer.size * 2 ** (quantizer.bits - bits), ""
    if shape is not None and bits < quantizer.bits:
        rounder = rounding_party(job, shape)
        codes = " and the reason codes" if job.reason_codes else ""
        limit = (
            f". The job would allow {2**quantizer.bits} values ({quantizer.bits} bits); fewer are used because the "
            f"scores{codes} of a row may reveal at most a quarter of the {shape.information[rounder].bits:.0f} bits of "
            f"a row of {rounder}"
        )
    elif (
        options.score_bits is None
        and "scores" not in job.accepts
        and not (shape and rounding_party(job, shape) in shape.information)
    ):
        limit = ". It is rounded more if the other party's columns contain little information"
    return (
        f"a score of each new row, rounded to one of {2**bits} values ({bits} bits), in steps of {step:g} on the scale "
        f"of the score{limit}. {consequences}"
    )


def column_share_text(facts: RunFacts, active: str) -> str:
    """Return words for a consent sheet: how much a changed program can make evaluations disclose about the columns.

    Args:
        facts: the facts known before the run.
        active: the party that has the labels and could change its program.

    Returns:
        The text, with one line for each maximum; empty if the information content of the columns is unknown.
    """
    outputs = [item for item in facts.outputs if item.group == COLUMN_BIT_GROUP]
    capacity = max((item.capacity for item in outputs), default=0)
    if not capacity:
        return ""
    about = next(iter(outputs)).about
    row_bits = capacity / (facts.shape.rows + facts.shape.held_out)
    pairs = [item for item in outputs if item.name == PAIRS]
    total, of_pairs = sum(item.count for item in outputs), sum(item.count for item in pairs)
    owners, one = " and ".join(about), len(about) == 1
    refusing = f"the program of {owners} refuses" if one else f"the programs of {owners} refuse"
    seeing = f"{owners} sees and accepts" if one else f"{owners} see and accept"
    of_columns = f"{total / capacity:.2%} of the bits in " + ("these columns" if one else "one party's columns")
    items = [
        f"With a changed program, {active} can make the values in the table of who learns what reveal other facts "
        f"about the columns of {owners}, of its choice, but no more than:",
        *(_pairs_text(item, row_bits, owners if one else "one of these parties") for item in pairs),
        f"sums: at most {total - of_pairs:,} bits from the sums and counts, which can all be about rows of {active}'s "
        "choice",
        f"total: {total:,} bits, which is {of_columns}{'' if one else ' if all are about it'}",
        f"limit: {refusing} a job if all jobs together would exceed {MAX_EVALUATION_SHARE:.0%}, unless the job file, "
        f"which {seeing}, permits more. {_jobs_within_limit(total, capacity)}",
        f"beyond: {_UNPROVEN_TEXT.format(active=active) if pairs else ''}If {active} has a measurement repeated, its "
        "bits count again (SECURITY.md)",
    ]
    return "\n".join(items)


def _pairs_text(output: Output, row_bits: float, owner: str) -> str:
    """Return the line on the bits that the opened pairs can disclose about all rows, and about one row."""
    bits = min(output.numbers // output.rows * output.bits, row_bits)
    return (
        f"pairs: at most {output.count:,} bits about all {output.rows:,} measured rows together; about any one row at "
        f"most {bits:.0f} of its {row_bits:.0f} bits ({row_bits:.0f} bits are all that the columns of {owner} contain "
        "about a row, by an estimate)"
    )


def _jobs_within_limit(bits: int, capacity: int) -> str:
    """Return a sentence that states how many jobs of `bits` bits stay within the limit for columns of `capacity`."""
    jobs = int(MAX_EVALUATION_SHARE * capacity / bits) if bits else 0
    if not jobs:
        return "This job alone exceeds it"
    return f"{jobs:,} jobs like this one stay within it" if jobs > 1 else "One job like this one stays within it"


def opened_text(facts: RunFacts) -> str:
    """Return words for a consent sheet: how many pairs, sums of losses and counts of out-of-range rows a run opens."""
    rows, times, chunks, opens_pairs = _measurements(facts)
    range_counts = f"{chunks} counts of rows near the end of the lookup table's range, one for each chunk"
    sums = f"{times} sums of losses of {rows} rows"
    if not opens_pairs:
        return f"{sums}; {range_counts}"
    for_classes = " of each class" if facts.shape.outputs > 1 else ""
    return f"{sums}; (score, label) pairs{for_classes} of these rows in random order, once; {range_counts}"


def _measurements(facts: RunFacts) -> tuple[int, int, int, bool]:
    """Return the number of measured rows, of measurements and of range counts, and whether pairs are opened."""
    sums = [item for item in facts.outputs if item.name == LOSS_SUMS]
    chunks = sum(item.times for item in facts.outputs if item.occasion == "chunk")
    rows, times = (sums[0].rows, sums[0].times) if sums else (0, 0)
    return rows, times, chunks, any(item.name == PAIRS for item in facts.outputs)


def stop_decisions_text(job: SharesJob) -> str:
    """Return words for a consent sheet: the decisions about the training that a party without labels learns.

    Examples are whether the training stops or rolls back. The text is empty if the job allows no such decision.
    """
    rolls_back = can_roll_back(job)
    facts = ["the training stops"] * job.stops_early
    facts += ["this model is the best so far"] * (job.stops_early or rolls_back)
    change = "shortens its steps" if job.model.pair_rank else "halves its step"
    facts += [f"the training returns to an earlier model and {change}"] * rolls_back
    if not facts:
        return ""
    return f"after each evaluation, yes-or-no answers that depend on labels: whether {', whether '.join(facts)}"


def table_error(loss: Loss, step: float) -> float:
    """Return the largest error of residuals g that are interpolated linearly between entries of a lookup table.

    It is computed for outputs between -1 and 1, and for one label: the mean label of a regression, or a row of the
    class in a classification.

    Args:
        loss: the loss function that the training minimises (`securevfl.models.loss`).
        step: distance between two entries.

    Returns:
        The largest error.
    """
    f = np.linspace(-1, 1, 2049)[:, None]
    y = np.full_like(f, 0.0 if isinstance(loss, NumberLoss) else 1.0)
    low = np.floor(f / step) * step
    left, right = (loss.residual(entry, y) for entry in (low, low + step))
    interpolated = left + (f - low) / step * (right - left)
    return float(np.abs(interpolated - loss.residual(f, y)).max())
