"""The joint evaluations of a run: how many there are, on which rows, and what they disclose."""

from __future__ import annotations

import math

from securevfl.disclosure.counts import Disclosure, RunShape
from securevfl.options import JobOptions
from securevfl.protocols.permits import STOP_DECISION_BITS
from securevfl.runtime.disclosure_gate import Group


def count_evaluations(job: JobOptions, sizes: RunShape) -> int:
    """How often all parties predict together in a run: where it is due between rounds, and at the end."""
    interval = job.evaluation_interval
    return 1 + (sizes.epochs * sizes.batches // interval if interval else 0)


def evaluation_rows(job: JobOptions, sizes: RunShape) -> tuple[Group, int]:
    """Return which group of rows is evaluated, and how many rows are evaluated in a run, counted in every evaluation
    anew."""
    return ("held out" if sizes.held_out else "training"), count_evaluations(job, sizes) * (
        sizes.held_out or sizes.rows
    )


def stop_decision_disclosures(job: JobOptions, sizes: RunShape) -> list[Disclosure]:
    """Count the bits by which passive parties are told, after evaluations, how to go on: of labels of the rows that
    are evaluated, as one that deviates may have the metric hang on a single one."""
    times = sizes.visits // job.decision_interval if job.decision_interval else 0
    rows = sizes.held_out or sizes.rows
    held = max(1, int(rows * (math.log2(sizes.outputs) if sizes.outputs > 1 else sizes.label_bits)))
    told = [(name, times * STOP_DECISION_BITS) for name in sizes.passives if times]
    about = (sizes.active,)
    return [Disclosure("labels", name, about, bits, held, group="verdicts", numbers=times) for name, bits in told]


def score_disclosures(job: JobOptions, sizes: RunShape) -> list[Disclosure]:
    """How many numbers f the joint evaluations tell the leading party."""
    rows = sizes.held_out or sizes.rows
    told = count_evaluations(job, sizes) * rows * sizes.outputs
    return [Disclosure("scores", sizes.active, sizes.passives, told, 0)]
