"""What a training on shares discloses, as numbers and bits."""

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
from securevfl.protocols.score_ledger.limits import SCORE_BIT_BUDGET
from securevfl.protocols.shares.opened_loss import MAX_LOSS_ROWS, MIN_LOSS_ROWS

LARGE_SCORES = LeakKind(
    "scores",
    "levels of new rows hold more than a fourth of what the others' columns do, or most of it is in one column",
    'fewer levels (score_bits), or scores = "none"',
    ("score_sums", "linked_outputs"),
)


def disclosed_score_bits(job: SharesJob, sizes: RunShape, rounds: str) -> int:
    """How many bits each score of a new row has, as far as the table of the party that rounds is at hand."""
    held = sizes.information.get(rounds)
    free = held is None or LARGE_SCORES.name in job.accepts
    codes = reason_code_bits(job, rounds, sizes.columns[rounds])
    most = inf if free or held is None else (SCORE_BIT_BUDGET * held.bits - codes) / sizes.outputs
    return job.protocol.shares.permitted_quantizer(job.model.loss.spacing, most).bits


def measured_rows(sizes: RunShape) -> int:
    """How many rows metrics are taken of."""
    rows = min(sizes.held_out or sizes.rows, MAX_LOSS_ROWS // sizes.outputs)
    return rows if rows >= MIN_LOSS_ROWS else 0


def count_measurements(job: JobOptions, sizes: RunShape) -> int:
    """How often metrics are taken: where they are due between rounds, and at the end if they are not due there."""
    rounds, every = sizes.epochs * sizes.batches, job.evaluation_interval
    return rounds // every + (rounds % every > 0) if every else 1


def count_weights(job: SharesJob, sizes: RunShape, name: str) -> int:
    """How many weights a party has, of all outputs."""
    active, opened = name == sizes.active, name in job.protocol.shares.open_weights
    spread = InputShape(active, sizes.columns[name], sizes.outputs, len(sizes.columns), sizes.rows, opened)
    return job.model.breadth(spread) * sizes.outputs


def weight_disclosures(job: SharesJob, sizes: RunShape) -> list[Disclosure]:
    """Count the bits of weights that are told: about the labels, against what these hold, and about the columns of each
    party but the one that learns them, as numbers of so many bits against what the columns of all rows hold."""
    found, bits = [], weight_levels(job, sizes.rows).bits
    labels = max(1, int(sizes.rows * (log2(sizes.outputs) if sizes.outputs > 1 else sizes.label_bits)))
    for name in sorted(sizes.columns.keys() & set(job.protocol.shares.open_weights)):
        count = count_weights(job, sizes, name)
        if name != sizes.active:
            about = (sizes.active,)
            told = Disclosure("labels", name, about, count * bits, labels, group="weights", numbers=count)
            found.append(told)
        for other in sizes.columns:
            if other != name:
                held = sizes.information.get(other)
                of = 0 if held is None else max(1, int(held.bits * sizes.rows / bits))
                found.append(Disclosure("columns", name, (other,), count, of, group="weights", numbers=count))
    return found


def partner_of(job: SharesJob, passives: Sequence[str], columns: Mapping[str, int]) -> str:
    """Whom the job names, or who has the most columns, the first of several."""
    chosen = job.protocol.shares.partner
    if chosen is not None and chosen in passives:
        return chosen
    return max(passives, key=lambda name: columns.get(name, 0))


def rounding_party(job: SharesJob, sizes: RunShape) -> str:
    """Who rounds scores: the partner, or the active party where the partner asks."""
    partner = partner_of(job, sizes.passives, sizes.columns)
    return sizes.active if job.protocol.shares.scores_to == partner else partner


def count_chunks(job: SharesJob, sizes: RunShape) -> int:
    """How many chunks a training has."""
    return -(-job.epochs // chunk_epochs(job, sizes.rows, sizes.outputs))
