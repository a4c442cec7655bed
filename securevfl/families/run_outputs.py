"""Everything that a run discloses, and the resulting leaks, for any protocol family.

An output is something that a run discloses to a party (`securevfl.disclosure.outputs`); a leak is a disclosure that a
job must accept by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from securevfl.disclosure.column_leaks import column_leaks
from securevfl.disclosure.counts import Disclosure, RunShape
from securevfl.disclosure.gradient_leaks import equation_leaks, label_auc_leaks
from securevfl.disclosure.leaks import Leak
from securevfl.disclosure.outputs import Output, disclosures_of
from securevfl.disclosure.sum_leaks import sequential, single_passive
from securevfl.families.evaluations import stop_decision_outputs
from securevfl.families.family import Family
from securevfl.options import JobOptions


def run_outputs(family: Family[Any], job: JobOptions, shape: RunShape) -> tuple[Output, ...]:
    """List what a complete run discloses: the outputs of its protocol family, and decisions after evaluations."""
    return (*family.outputs(job, shape), *stop_decision_outputs(job, shape))


def run_leaks(family: Family[Any], job: JobOptions, shape: RunShape, before: Sequence[Disclosure] = ()) -> list[Leak]:
    """List the leaks of a job: disclosures that it must accept by name.

    Args:
        family: the protocol family of the job.
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        shape: public sizes of the run: numbers of rows, batches, model outputs and columns of each party.
        before: disclosures of earlier jobs about the same tables.

    Returns:
        The leaks that follow from outputs and from the sum protocol, and those that only this protocol family has.
    """
    outputs = run_outputs(family, job, shape)
    counts = disclosures_of(outputs)
    return [
        *single_passive(job, shape),
        *equation_leaks(job, counts, shape, before),
        *label_auc_leaks(job, counts, shape, before),
        *column_leaks(job, counts, shape, before),
        *sequential(job, shape),
        *family.leaks(job, shape, outputs, before),
    ]
