"""What a training on shares discloses, in words for the consent sheet."""

from __future__ import annotations

import numpy as np

from securevfl.disclosure.counts import RunShape
from securevfl.families.run_facts import RunFacts
from securevfl.families.shares.shares_disclosures import (
    count_chunks,
    count_measurements,
    count_weights,
    disclosed_score_bits,
    measured_rows,
    rounding_party,
)
from securevfl.families.shares.shares_job import SharesJob
from securevfl.families.shares.shares_plan import can_roll_back, weight_levels
from securevfl.models import pair_metrics
from securevfl.models.loss import Loss, NumberLoss
from securevfl.protocols.shares.range_count import MAX_COUNTED_SUMS

_WEIGHTS_TEXT = """\
its own weights, as the job says, so its own part X_k theta_k, which ranks the labels about as
well as its columns can: to an AUC of 0.71 to 0.99 on public tables"""

_WEIGHT_BITS_TEXT = """\
{numbers} of {bits} bits each, rounded at random; one that
deviates has {total:,} bits of its choice of the labels and of the others' columns"""


def weights_text(job: SharesJob, party: str, known: RunFacts | None) -> str:
    """Describe in words what a party is told that is told its weights."""
    if known is None:
        return _WEIGHTS_TEXT
    count, bits = count_weights(job, known.shape, party), weight_levels(job, known.shape.rows).bits
    numbers = f"{count:,} numbers" if count > 1 else "one number"
    return f"{_WEIGHTS_TEXT}: {_WEIGHT_BITS_TEXT.format(numbers=numbers, bits=bits, total=count * bits)}"


_SCORES_TEXT = """\
with what it knows of its own columns; a column with most of the weight can be read.
Each row is scored once, and never one that was trained on"""


def scores_text(job: SharesJob, sizes: RunShape | None) -> str:
    """Describe in words what the party that asks for scores of new rows is told, as far as sizes are known."""
    options = job.protocol.shares
    if options.scores == "exact":
        return f"exact scores of new rows, from which the others' columns follow {_SCORES_TEXT}"
    levels = options.score_quantizer(job.model.loss.spacing)
    bits = levels.bits if sizes is None else disclosed_score_bits(job, sizes, rounding_party(job, sizes))
    step, fewer = levels.size * 2 ** (levels.bits - bits), ""
    if sizes is not None and bits < levels.bits:
        fewer = f"\n({levels.bits} were asked for, {rounding_party(job, sizes)}'s columns allow no more)"
    elif (
        options.score_bits is None
        and "scores" not in job.accepts
        and not (sizes and rounding_party(job, sizes) in sizes.information)
    ):
        fewer = "\n(fewer if the other party's columns hold little)"
    return (
        f"scores of new rows in steps of {step:g}: a score tells at most {bits} bits of a row{fewer},\n{_SCORES_TEXT}"
    )


def quality_text(job: SharesJob, sizes: RunShape) -> str:
    """Describe in words what the party with labels is told of how good the model is."""
    rows, times, counted = measured_rows(sizes), count_measurements(job, sizes), count_chunks(job, sizes)
    at_most = "once" if times == 1 else f"up to {times} times"
    often = "once" if counted == 1 else f"up to {counted} times"
    ends = (
        f"and {often} how many of {MAX_COUNTED_SUMS:,} training rows\n"
        "at most have scores beyond the range computed with"
    )
    if not pair_metrics.supports_pairs(job.model.loss):
        return f"how good the model is: {at_most} the sum of the losses of all rows measured,\n{ends}"
    which = "held-out" if sizes.held_out else "training"
    each = " for each class" if sizes.outputs > 1 else ""
    return (
        f"how good the model is: {at_most}, for each of {rows:,} {which} rows, a rounded score beside\n"
        f"a label{each}, in an order that nobody knows,\n{ends}"
    )


SCORE_PARTS_TEXT = """\
{asker} is told its own weights and scores: what it takes its own part off is the sum of the
others' parts, for every row that is scored"""


def stop_decisions_text(job: SharesJob) -> str:
    """Describe in words what a party without labels is told of how the training goes; empty where that is nothing."""
    told = ["to stop"] * job.stops_early + ["it was the best"] * (job.stops_early or can_roll_back(job))
    told += ["to go back and on by half the step"] * can_roll_back(job)
    if not told:
        return ""
    listed = f"{', whether '.join(told[:-1])} and whether {told[-1]}" if can_roll_back(job) else ", whether ".join(told)
    return f"; after each evaluation whether\n{listed}, which follows from labels"


def table_error(loss: Loss, step: float) -> float:
    """How far a line between entries `step` apart is from g, at most, for sums up to 1 either way and a label of the
    mean, or of a class."""
    f = np.linspace(-1, 1, 2049)[:, None]
    y = np.full_like(f, 0.0 if isinstance(loss, NumberLoss) else 1.0)
    low = np.floor(f / step) * step
    ends = [loss.residual(each, y) for each in (low, low + step)]
    line = ends[0] + (f - low) / step * (ends[1] - ends[0])
    return float(np.abs(line - loss.residual(f, y)).max())
