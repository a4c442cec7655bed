"""The disclosures of a training on secret shares, in words for the parties' consent sheets.

A consent sheet lists what a party sends and learns. Evaluations open (disclose to the party with labels) sums of losses
and, for the final model, pairs of a rounded score and a label. A lookup table converts the output of a row to its
residual; outputs outside its range get wrong residuals. One party, the rounder, rounds scores of new rows to a few
bits. The *capacity* of a disclosure is the number of bits of the data that it is about.
"""

from __future__ import annotations

import numpy as np

from securevfl.disclosure.counts import COLUMN_BIT_GROUP, RunShape
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
together with the receiver's own columns; a column with most of the weight can be read.
Each row is scored once, and training rows are never scored"""

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


def scores_text(job: SharesJob, shape: RunShape | None) -> str:
    """Return words for the requesting party's consent sheet: what it learns from scores of new rows."""
    options = job.protocol.shares
    if options.scores == "exact":
        return f"exact scores of new rows, which determine the others' columns {_SCORES_TEXT}"
    quantizer = options.score_quantizer(job.model.loss.spacing)
    bits = quantizer.bits if shape is None else disclosed_score_bits(job, shape, rounding_party(job, shape))
    step, limit = quantizer.size * 2 ** (quantizer.bits - bits), ""
    if shape is not None and bits < quantizer.bits:
        limit = f"\n({quantizer.bits} were requested, {rounding_party(job, shape)}'s columns allow no more)"
    elif (
        options.score_bits is None
        and "scores" not in job.accepts
        and not (shape and rounding_party(job, shape) in shape.information)
    ):
        limit = "\n(fewer if the other party's columns contain little information)"
    return (
        f"scores of new rows in steps of {step:g}: a score discloses at most {bits} bits of a row{limit},\n"
        f"{_SCORES_TEXT}"
    )


def column_share_text(facts: RunFacts) -> str:
    """Return words for a consent sheet: how much evaluations disclose about the columns, at most; empty if unknown."""
    outputs = [item for item in facts.outputs if item.group == COLUMN_BIT_GROUP]
    capacity = max((item.capacity for item in outputs), default=0)
    if not capacity:
        return ""
    pairs = [item for item in outputs if item.name == PAIRS]
    row_bits = capacity / (facts.shape.rows + facts.shape.held_out)
    total, sums = sum(item.count for item in outputs), sum(item.count for item in outputs if item not in pairs)
    word = min(sum(item.numbers // item.rows * item.bits for item in pairs), row_bits)
    of_row = f"{word:.0f} of the {row_bits:.0f} bits of one measured row, by its score; " if pairs else ""
    jobs = int(MAX_EVALUATION_SHARE * capacity / total) if total else 0
    enough = f"which is enough for {jobs:,} jobs like this one" if jobs else "which is less than this job reveals"
    return (
        f"deviate from the protocol, and so choose what these values reveal about the others' columns: at most {of_row}"
        f"{sums} bits about any rows, by the sums and counts; and {total:,} bits ({total / capacity:.2%}) about all "
        f"rows together. All jobs together may reveal {MAX_EVALUATION_SHARE:.0%}, {enough}"
    )


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
    facts = ["to stop"] * job.stops_early + ["the model is the best"] * (job.stops_early or rolls_back)
    facts += ["to roll back and halve the step"] * rolls_back
    if not facts:
        return ""
    listed = f"{', whether '.join(facts[:-1])} and whether {facts[-1]}" if rolls_back else ", whether ".join(facts)
    return f"after each evaluation whether {listed}, which depends on labels"


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
