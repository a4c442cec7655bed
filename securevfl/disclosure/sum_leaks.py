"""Leaks of sums that should hide their summands: the receiver can compute one party's model outputs.

A leak is a disclosure that a job must accept by name before it runs. In each round of a training, the parties without
labels (passive parties) contribute their model outputs, which are the summands, or parts, of a sum. Some sum protocols
(such as "pairwise") reveal only the total to the receiver, and no single summand.

*Single passive.* If there is only one passive party, the total is its summand.

*Sequential.* If parties update their weights in turn, two consecutive sums differ by the outputs of one party.
"""

from __future__ import annotations

from collections.abc import Iterator

from securevfl.disclosure.counts import RunShape
from securevfl.disclosure.leaks import Leak, LeakKind
from securevfl.options import JobOptions

SINGLE_PASSIVE = LeakKind(
    "single_passive",
    "the sum protocol should hide the parts of sums, but there is one passive party, so each sum has one part",
    'sum = "direct", which states that it hides nothing',
)
SEQUENTIAL = LeakKind(
    "sequential",
    "one passive party alone updates its weights between two sums whose parts the protocol should hide",
    'mode = "parallel", in which all parties update at once',
    ("first_difference",),
)


def single_passive(job: JobOptions, sizes: RunShape) -> Iterator[Leak]:
    """Yield a leak if there is one passive party and the job's sum should hide its outputs."""
    chosen = job.protocol.sum_for(len(sizes.passives))
    if len(sizes.passives) == 1 and chosen.hides_parts:
        yield Leak(
            SINGLE_PASSIVE,
            sizes.active,
            f"a {chosen.name} sum of one passive party's outputs is that party's outputs, so it protects nothing",
            'use sum = "direct" (or "auto"), which states that it hides nothing',
            acceptable=chosen.min_contributors == 1,
        )


def sequential(job: JobOptions, sizes: RunShape) -> Iterator[Leak]:
    """Yield a leak if one party alone updates its weights between two sums that should hide their summands."""
    passives = sizes.passives
    if len(passives) > 1 and job.protocol.sum_for(len(passives)).hides_parts and job.optimizer.exchanges(passives) > 1:
        yield Leak(
            SEQUENTIAL,
            sizes.active,
            "one passive party alone updates its weights between two sums, so the difference of the sums is the change "
            "of that party's outputs",
            'use mode = "parallel", in which all parties update at once',
        )
