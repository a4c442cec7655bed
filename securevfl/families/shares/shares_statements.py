"""The disclosures of a training on secret shares, in words for the parties' consent sheets.

A consent sheet lists what a party sends and learns. Evaluations open (disclose to the party with labels) sums of losses
and, for the final model, pairs of a rounded score and a label. A lookup table converts the output of a row to its
residual; outputs outside its range get wrong residuals. One party, the rounder, rounds scores of new rows to a few
bits. The *capacity* of a disclosure is the number of bits of the data that it is about.
"""

from __future__ import annotations

import numpy as np

from securevfl.base.roles import PARTNER, Roles
from securevfl.disclosure.counts import COLUMN_BIT_GROUP, RunShape
from securevfl.disclosure.outputs import Output
from securevfl.families.facts import RunFacts
from securevfl.families.shares.shares_job import SharesJob
from securevfl.families.shares.shares_outputs import (
    LOSS_SUMS,
    MAX_EVALUATION_SHARE,
    PAIRS,
    SMALL_METRICS,
    disclosed_score_bits,
    rounding_party,
)
from securevfl.families.shares.shares_plan import can_roll_back
from securevfl.models.loss import Loss, NumberLoss
from securevfl.protocols.score_ledger.score_limits import SCORE_BIT_BUDGET, max_evaluations
from securevfl.protocols.shares.quantizer import Quantizer

_WEIGHTS_TEXT = """\
its own weights, as the job permits, and so the outputs X_k theta_k of its columns, which rank the labels
about as well as its columns can: with an AUC of 0.71 to 0.99 on public tables"""

_WEIGHT_BITS_TEXT = """\
They are rounded at random; a
malicious party can choose what {total:,} bits disclose about the labels and the others' columns"""

_DOMINANT_TEXT = """\
A few bits can be most of a single column: if one column of another party has most of the weight in the model, or if
several of its columns rise and fall together, {asker} can compute most of a column from the scores and its own
columns"""

_REPEATED_TEXT = """\
If {asker} asks for the same row again, it gets the same score. Another model can give another score of
it{together}. A row of the training never gets a score"""

PAIRS_TEXT = """\
sums of prediction errors, counts of rows with too large a score, and pairs of a score and a label in random order"""

_INTERACTIONS_TEXT = """\
The model has interactions between the columns of {lead} and {partner}. Even if {asker} follows the protocol, it can
choose which mixture of the columns of {party} the score of a row shows: the values that {asker} uses for this row in
its own columns determine the mixture. A row gets a score with one set of these values only. """

_INTERACTIONS_LIMIT_TEXT = """\
The program of {party} adds up the bits of all scores of models with interactions, over all jobs and peers. It refuses
requests that would exceed {bits}a quarter of the bits that the columns of {party} contain about the training
rows{scores}. The training rows are only the measure of this limit: the scores are about other rows"""

SCORE_PARTS_TEXT = """\
{asker} learns its own weights and scores: a score without its own part is the sum of the
others' parts, for every scored row"""


def weights_text(party: str, facts: RunFacts | None) -> str:
    """Return words for a party's consent sheet: what it learns from its weights, if the job opens them to it."""
    if facts is None:
        return _WEIGHTS_TEXT
    output = next(item for item in facts.outputs if item.group == "weights" and item.receiver == party)
    return f"{_WEIGHTS_TEXT}. {_WEIGHT_BITS_TEXT.format(total=output.total_numbers * output.bits)}"


def scores_texts(job: SharesJob, shape: RunShape | None, asker: str) -> list[str]:
    """Return words for the consent sheet of `asker`: what it learns from scores of new rows."""
    limited = job.protocol.shares.scores != "exact" and "scores" not in job.accepts
    together = ", but all scores of a row together reveal at most a quarter of its bits" if limited else ""
    return [
        _rounding_text(job, shape),
        _DOMINANT_TEXT.format(asker=asker),
        _REPEATED_TEXT.format(asker=asker, together=together),
    ]


def score_steps_text(job: SharesJob, shape: RunShape | None) -> str:
    """Return words for the details of a consent sheet: the distance between two rounded scores."""
    options = job.protocol.shares
    if options.scores != "levels":
        return ""
    quantizer, bits = _score_rounding(job, shape)
    return f"scores of new rows are rounded at random, in steps of {quantizer.size * 2 ** (quantizer.bits - bits):g}"


def _score_rounding(job: SharesJob, shape: RunShape | None) -> tuple[Quantizer, int]:
    """Return the levels of scores by the job, and the number of bits of a score by what is known of the tables."""
    quantizer = job.protocol.shares.score_quantizer(job.model.loss.spacing)
    bits = quantizer.bits if shape is None else disclosed_score_bits(job, shape, rounding_party(job, shape))
    return quantizer, bits


def _rounding_text(job: SharesJob, shape: RunShape | None) -> str:
    """Return words for the consent sheet of the party that receives scores: how they are rounded, and why."""
    options = job.protocol.shares
    if options.scores == "exact":
        return "exact scores of new rows: enough of them determine the others' columns"
    (quantizer, bits), limit = _score_rounding(job, shape), ""
    if shape is not None and bits < quantizer.bits:
        rounder = rounding_party(job, shape)
        codes = " and the reason codes" if job.reason_codes else ""
        limit = (
            f". The job would permit {2**quantizer.bits} values ({quantizer.bits} bits). The program uses fewer, "
            f"because the scores{codes} of a row must not reveal more than a quarter of its bits at {rounder}"
        )
    elif (
        options.score_bits is None
        and "scores" not in job.accepts
        and not (shape and rounding_party(job, shape) in shape.information)
    ):
        limit = ". It is rounded more if the other party's columns contain little information"
    return f"for each new row a score, rounded to one of {2**bits} values ({bits} bits){limit}"


def interactions_text(job: SharesJob, roles: Roles, party: str, facts: RunFacts | None) -> str:
    """Return words for a consent sheet: what scores of a model with pairs of components show of a party's columns.

    Args:
        job: the options of the training, whose model has pairs.
        roles: the roles of all parties.
        party: the party whose columns the scores show: the party with labels or its partner.
        facts: the facts of the run, if they are known.

    Returns:
        The text.
    """
    options, shape = job.protocol.shares, None if facts is None else facts.shape
    asker = options.scores_to or roles.lead
    (partner, *_) = roles.with_role(PARTNER) or ("its partner",)
    text = _INTERACTIONS_TEXT.format(lead=roles.lead, partner=partner, asker=asker, party=party)
    if options.scores == "exact" or "scores" in job.accepts:
        return f"{text}The job sets no limit on these scores"
    limit = scores = ""
    if shape is not None and party in shape.information:
        _, rounded_bits = _score_rounding(job, shape)  # `party` is the share holder that rounds: the other one asks
        score_bits = rounded_bits * shape.outputs
        bits = int(SCORE_BIT_BUDGET * shape.information[party].bits * shape.rows)
        limit = f"{bits:,} bits: "
        scores = f". Scores of {bits // score_bits:,} rows reach it, with {score_bits} bits each"
    return text + _INTERACTIONS_LIMIT_TEXT.format(party=party, bits=limit, scores=scores)


def column_share_text(job: SharesJob, facts: RunFacts, active: str) -> str:
    """Return words for a consent sheet: how much a changed program can make evaluations disclose about the columns.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
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
    rows = facts.shape.rows + facts.shape.held_out
    row_bits, pairs = capacity / rows, [item for item in outputs if item.name == PAIRS]
    total, of_pairs = sum(item.count for item in outputs), sum(item.count for item in pairs)
    owners, one = " and ".join(about), len(about) == 1
    owner = owners if one else "one of these parties"
    items = [
        f"If {active} changes its program, the values in the table above can contain other facts about the columns of "
        f"{owners}, which {active} can choose. Their amount is limited:",
        *(text for item in pairs for text in _pairs_texts(item, row_bits, active)),
        f"sums: at most {total - of_pairs:,} bits from sums and counts. {active} can choose the rows that they are "
        f"about, so they could be all bits about {_few_rows((total - of_pairs) / row_bits)}",
        f"total: {total:,} bits. This is {total / capacity:.2%} of the {capacity:,} bits that, by an estimate, the "
        f"columns of {owner} contain about all {rows:,} rows ({row_bits:.0f} bits about one row)"
        f"{'' if one else ', if all of them are about this party'}",
        _limit_text(job, owners, one=one, jobs=int(MAX_EVALUATION_SHARE * capacity / total) if total else 0),
        *(_repeats_text(job, item.rows, active, owners, one=one) for item in outputs if item.name == LOSS_SUMS),
    ]
    return "\n".join(items)


def _pairs_texts(output: Output, row_bits: float, active: str) -> list[str]:
    """Return the lines on the bits that the opened pairs can disclose about all rows, and about one row."""
    bits = min(output.numbers // output.rows * output.bits, row_bits)
    every = ", but not about every row" if bits * output.rows > output.count else ""
    return [
        f"pairs: at most {output.count:,} bits in total about the {output.rows:,} measured rows. Up to {bits:.0f} of "
        f"them can be about one row (of its {row_bits:.0f} bits){every}",
        f"exception: if the changed program of {active} also sends wrong numbers while the pairs are put into random "
        f"order, this limit of {output.count:,} bits is not proven",
    ]


def _few_rows(rows: float) -> str:
    return f"{int(rows):,} rows" if rows >= 2 else "one row" if rows >= 1 else "part of one row"


def _limit_text(job: SharesJob, owners: str, *, one: bool, jobs: int) -> str:
    """Return the line on the limit for all jobs, of which `jobs` like this one stay within it."""
    if SMALL_METRICS.name in job.accepts:
        return f"limit: none, because the job accepts {SMALL_METRICS.name}"
    refusing, seeing = ("program", "sees this") if one else ("programs", "see this")
    like_this = {0: "This job alone exceeds it", 1: "One job like this one stays below"}
    return (
        f"limit: the {refusing} of {owners} {'refuses' if one else 'refuse'} a further job if all jobs together could "
        f"reveal more than {MAX_EVALUATION_SHARE:.0%} of these bits. A job file can lift this limit, but {owners} "
        f"{seeing} and must agree. {like_this.get(jobs, f'{jobs:,} jobs like this one stay below')}"
    )


def _repeats_text(job: SharesJob, rows: int, active: str, owners: str, *, one: bool) -> str:
    """Return the line on measurements that are repeated."""
    permitted = max_evaluations(rows)
    limit = f"at most {permitted:,} measurements" if permitted > 1 else "one measurement"
    if SMALL_METRICS.name in job.accepts:
        limit = "any number of measurements"
    ledger, permit = (f"ledger of {owners}", "permits") if one else (f"ledgers of {owners}", "permit")
    return (
        f"repeats: if {active} causes a measurement to be repeated, for example by an interruption, its bits count "
        f"again in the {ledger}, which {permit} {limit} of the same rows over all jobs"
    )


def opened_text(facts: RunFacts) -> str:
    """Return words for a consent sheet: how many pairs, sums of losses and counts of out-of-range rows a run opens."""
    rows, times, counts, opens_pairs = _measurements(facts)
    plural = "" if counts == 1 else "s"
    range_counts = f"{counts} count{plural} of rows near the end of the lookup table's range"
    sums = f"{times} sums of losses of {rows} rows"
    if not opens_pairs:
        return f"{sums}; {range_counts}"
    for_classes = " of each class" if facts.shape.outputs > 1 else ""
    return f"{sums}; (score, label) pairs{for_classes} of these rows in random order, once; {range_counts}"


def _measurements(facts: RunFacts) -> tuple[int, int, int, bool]:
    """Return the number of measured rows, of measurements and of range counts, and whether pairs are opened."""
    sums = [item for item in facts.outputs if item.name == LOSS_SUMS]
    counts = sum(item.times for item in facts.outputs if item.occasion == "count")
    rows, times = (sums[0].rows, sums[0].times) if sums else (0, 0)
    return rows, times, counts, any(item.name == PAIRS for item in facts.outputs)


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
