"""The joint evaluations of a run: how many there are, on which rows, and what they disclose.

In a joint evaluation all parties compute the outputs f of the current model on the held-out rows, or on the training
rows if no rows are held out. The active party has the labels and leads; passive parties have none.
"""

from __future__ import annotations

import math

from securevfl.disclosure.counts import Disclosure, RunShape
from securevfl.options import JobOptions
from securevfl.protocols.permits import STOP_DECISION_BITS
from securevfl.runtime.disclosure_gate import Group


def count_evaluations(job: JobOptions, shape: RunShape) -> int:
    """Return the number of joint evaluations of a run: every `evaluate_every` rounds, and one at the end."""
    interval = job.evaluation_interval
    return 1 + (shape.epochs * shape.batches // interval if interval else 0)


def evaluation_rows(job: JobOptions, shape: RunShape) -> tuple[Group, int]:
    """Return the evaluated group of rows, and the number of its rows times the number of evaluations."""
    rows = shape.held_out or shape.rows
    return ("held out" if shape.held_out else "training"), count_evaluations(job, shape) * rows


def stop_decision_disclosures(job: JobOptions, shape: RunShape) -> list[Disclosure]:
    """Count the bits about labels in the decisions (continue, stop or roll back) that passive parties receive.

    A malicious active party can make a decision depend on a single label.
    """
    times = shape.visits // job.decision_interval if job.decision_interval else 0
    rows = shape.held_out or shape.rows
    bits_per_label = math.log2(shape.outputs) if shape.outputs > 1 else shape.label_bits
    capacity = max(1, int(rows * bits_per_label))
    return [
        Disclosure(
            "labels",
            name,
            (shape.active,),
            times * STOP_DECISION_BITS,
            capacity,
            group="verdicts",
            numbers=times,
        )
        for name in shape.passives
        if times
    ]


def score_disclosures(job: JobOptions, shape: RunShape) -> list[Disclosure]:
    """Count the outputs f that the leading party receives in joint evaluations."""
    rows = shape.held_out or shape.rows
    outputs = count_evaluations(job, shape) * rows * shape.outputs
    return [Disclosure("scores", shape.active, shape.passives, outputs, 0)]
