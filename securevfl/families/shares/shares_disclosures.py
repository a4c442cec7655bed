"""The disclosures of a training on shares, as numbers and bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, log2

from securevfl.disclosure.counts import Disclosure, RunShape
from securevfl.disclosure.leaks import LeakKind
from securevfl.families.shares.chunk_pipeline import chunk_epochs
from securevfl.families.shares.shares_job import SharesJob
from securevfl.families.shares.shares_plan import reason_code_bits, weight_levels
from securevfl.models.inputs import InputShape
from securevfl.options import JobOptions
from securevfl.protocols.score_ledger.score_limits import SCORE_BIT_BUDGET
from securevfl.protocols.shares.opened_loss import MAX_LOSS_ROWS, MIN_LOSS_ROWS

LARGE_SCORES = LeakKind(
    "scores",
    "scores of new rows disclose more than a fourth of the others' columns, or one column dominates",
    'fewer levels (score_bits), or scores = "none"',
    ("score_sums", "linked_outputs"),
)


def disclosed_score_bits(job: SharesJob, shape: RunShape, rounder: str) -> int:
    """Return the number of bits of each score of a new row.

    Args:
        job: the job.
        shape: the shape of the run.
        rounder: the party that rounds scores; its table limits the bits if it is available.

    Returns:
        The number of bits of each score of a new row.
    """
    information = shape.information.get(rounder)
    codes = reason_code_bits(job, rounder, shape.columns[rounder])
    limit = inf
    if information is not None and LARGE_SCORES.name not in job.accepts:
        limit = (SCORE_BIT_BUDGET * information.bits - codes) / shape.outputs
    return job.protocol.shares.permitted_quantizer(job.model.loss.spacing, limit).bits


def measured_rows(shape: RunShape) -> int:
    """Return the number of rows on which metrics are measured; 0 if there are too few."""
    rows = min(shape.held_out or shape.rows, MAX_LOSS_ROWS // shape.outputs)
    return rows if rows >= MIN_LOSS_ROWS else 0


def measured_iterations(total: int, interval: int, start: int = 0) -> list[int]:
    """Return the iterations after which metrics are measured.

    Args:
        total: number of iterations of the training.
        interval: number of iterations between measurements; 0 measures at the end only.
        start: number of iterations that were finished before a resume.

    Returns:
        The iterations after which metrics are measured.
    """
    if not interval:
        return [total]
    between = range((start // interval + 1) * interval, total + 1, interval)
    return [*between] if total % interval == 0 else [*between, total]


def count_measurements(job: JobOptions, shape: RunShape) -> int:
    """Return how often metrics are measured in a complete run."""
    interval = job.evaluation_interval
    return -(-shape.epochs * shape.batches // interval) if interval else 1


def count_weights(job: SharesJob, shape: RunShape, name: str) -> int:
    """Return the number of weights of a party, of all outputs together."""
    active, opened = name == shape.active, name in job.protocol.shares.open_weights
    inputs = InputShape(active, shape.columns[name], shape.outputs, len(shape.columns), shape.rows, opened)
    return job.model.breadth(inputs) * shape.outputs


def weight_disclosures(job: SharesJob, shape: RunShape) -> list[Disclosure]:
    """Count the bits of opened weights.

    Bits about labels are compared with the bits of all labels. Weights about the columns of another party are compared
    with the number of such weights that would have as many bits as these columns in all rows.
    """
    disclosures, bits = [], weight_levels(job, shape.rows).bits
    labels = max(1, int(shape.rows * (log2(shape.outputs) if shape.outputs > 1 else shape.label_bits)))
    for name in sorted(shape.columns.keys() & set(job.protocol.shares.open_weights)):
        count = count_weights(job, shape, name)
        if name != shape.active:
            about = (shape.active,)
            disclosures.append(Disclosure("labels", name, about, count * bits, labels, group="weights", numbers=count))
        for other in shape.columns:
            if other != name:
                information = shape.information.get(other)
                capacity = 0 if information is None else max(1, int(information.bits * shape.rows / bits))
                disclosures.append(
                    Disclosure("columns", name, (other,), count, capacity, group="weights", numbers=count)
                )
    return disclosures


def partner_of(job: SharesJob, passives: Sequence[str], columns: Mapping[str, int]) -> str:
    """Return the partner: the passive party that the job names, or the first one with the most columns."""
    chosen = job.protocol.shares.partner
    if chosen is not None and chosen in passives:
        return chosen
    return max(passives, key=lambda name: columns.get(name, 0))


def rounding_party(job: SharesJob, shape: RunShape) -> str:
    """Return the party that rounds scores: the partner, or the active party if the partner requests scores."""
    partner = partner_of(job, shape.passives, shape.columns)
    return shape.active if job.protocol.shares.scores_to == partner else partner


def count_chunks(job: SharesJob, shape: RunShape) -> int:
    """Return the number of chunks of a training."""
    return -(-job.epochs // chunk_epochs(job, shape.rows, shape.outputs))
