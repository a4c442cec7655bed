"""What training by rounds adds up to, counted, and what a passive party can tell from it, in words."""

from __future__ import annotations

import numpy as np

from securevfl.audit.curve import expected_label_auc
from securevfl.audit.leverage import measure
from securevfl.crypto.scheme import Floats
from securevfl.disclosure import counts
from securevfl.methods.base import Known
from securevfl.methods.options import JobOptions
from securevfl.scaling import moments
from securevfl.schedule import Schedule

__all__ = ["counts", "learns"]


def learns(job: JobOptions, party: str, known: Known | None) -> list[str]:
    """What a passive party learns, by the residual."""
    residual = job.protocol.residual
    assert residual is not None, "a job by rounds has a residual"
    if not residual.seals:
        return [residual.shows]
    if known is None:
        return [
            "its own gradient: p equations about the n x c residuals of a batch; the share p / (n c)\n"
            "projects the labels and is a leak that larger batches make smaller"
        ]
    sizes, schedule, X = known.sizes, known.schedule, known.party(party).X
    rows, outputs, p = sizes.smallest_batch, sizes.outputs, sizes.parameters[party]
    times = (
        f"new in each of {job.epochs} epochs" if job.reshuffle else f"the same {schedule.batches} batches every epoch"
    )
    auc = expected_label_auc(p, rows, outputs, job.epochs, job.reshuffle)
    share = f"the share p / (n c) = {p / sizes.residuals:.3f}"
    return [
        f"its own gradient: p = {p} equations about n x c = {sizes.residuals} residuals a batch, {times};\n"
        f"{share} projects the labels: a leak that larger batches make smaller\n"
        f"from columns of noise it tells labels to an AUC of {auc:.2f}, from real columns to more"
        + _alone(job, X, schedule)
    ]


def _alone(job: JobOptions, X: Floats, schedule: Schedule) -> str:
    """A line more if rows of the party stand nearly alone in their batches."""
    mean, deviation = moments(X, schedule.flow) if job.scale == "standard" else (np.zeros(1), np.ones(1))
    found = measure((X[rows] - mean) / np.where(deviation > 0, deviation, 1.0) for rows in schedule.partition(0))
    if not found.alone:
        return ""
    return (
        f"\n{found.alone} rows of {found.rows} stand nearly alone (rare values, leverage up to {found.largest:.2f}): "
        "their residual, and so label, is nearly opened"
    )
