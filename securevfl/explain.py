"""The consent sheet of a job: role by role what is sent, received and learned, under which assumption."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from securevfl.audit.curve import expected_label_auc
from securevfl.audit.leverage import measure
from securevfl.crypto.scheme import Floats
from securevfl.errors import LabelError
from securevfl.leakage import leaks
from securevfl.models.base import Model
from securevfl.models.kernel import Kernel
from securevfl.party import Party, check_parties
from securevfl.protocols import phase_sums
from securevfl.protocols.base import Declared
from securevfl.protocols.open_residual import OpenResidual
from securevfl.scaling import moments
from securevfl.schedule import Schedule

if TYPE_CHECKING:
    from securevfl.job import Job

ASSUMPTIONS = "every party follows the protocol and may study what it received (semi-honest); lines are authenticated"


def explain(job: Job, parties: Sequence[Party] | None = None) -> str:
    """The sheet as text. Without parties it speaks of one active and one passive party and gives shares as formulas."""
    if parties is None:
        active, passives, known = "active", ["passive"], None
    else:
        lead, others = check_parties(parties, several_active=job.optimizer.several_active)
        active, passives, known = lead.name, [party.name for party in others], (lead, others)
    sums, residual = job.protocol.sum_for(len(passives)), job.protocol.residual
    kernel = isinstance(job.model, Kernel)
    every = (*sums.declares(passives), *residual.declares(), *phase_sums.declares())
    declared = [item for item in every if kernel or not item.phases]
    down = "no residual" if kernel else f"{residual.name} residual"
    lines = [
        f"{job.optimizer.label} on a {job.model.name} model, protocol {sums.name} sum / {down}",
        f"assumes: {ASSUMPTIONS}",
        f"encryption: {residual.strength}",
        *_openings(job, known),
        "",
        f"{active} (active, holds the labels)",
        *_role(declared, "active"),
        "  learns    f = sum_k H_k on the rows predicted, and what is marked output or plain above",
        *([_others_f(sum(p.active for p in parties))] if parties and sum(p.active for p in parties) > 1 else []),
        *(_phases(job.model) if isinstance(job.model, Kernel) else []),
        f"  pooling   {sums.coalition(passives)}",
    ]
    labelled = {party.name for party in parties or () if party.active}
    for name in passives:
        if name in labelled:
            lines += ["", f"{name} (holds labels too: active in its turns, passive in the others')"]
            lines += [
                *_role(declared, "active"),
                *_role(declared, "passive"),
                "  learns    f on its minibatches",
                *_phases(job.model),
            ]
            continue
        lines += ["", f"{name} (passive)", *_role(declared, "passive")]
        lines += ["  learns    nothing"] if kernel else _equations(job, name, known)
    lines += _leaks(job, known)
    return "\n".join(lines)


def _openings(job: Job, known: tuple[Party, list[Party]] | None) -> list[str]:
    """How close the openings of all passive parties together are to ones that tell their gradients alone."""
    if known is None:
        return []
    lead, others = known
    try:
        schedule, outputs = _sizes(job, lead)
    except LabelError:
        return []
    values = schedule.batches * outputs * sum(party.X.shape[1] for party in others)
    line = job.protocol.residual.openings(values, job.epochs)
    return [f"openings: {line}"] if line else []


def _others_f(labelled: int) -> str:
    """What a party with labels learns of the other ones' coefficients."""
    whose = "the other's f" if labelled == 2 else "the sum of the others' f"
    return f"  learns    {whose} on the rows of its minibatches, which follows their labels"


def _phases(model: Model) -> list[str]:
    """What a party with labels learns of the others' columns from its features."""
    M = model.features if isinstance(model, Kernel) else 0
    return [
        f"            M = {M} phases of every row: the sum of x_l w_l over the other parties, modulo a turn. Each",
        "            draws its w_l itself, so no system of equations leads to its columns. What no w hides is told:",
        "            the kernel, and so the distance, of any two rows in the other parties' columns together; where",
        "            phases seldom wrap (small gamma), these columns up to one unknown linear map, which as many known",
        "            rows as columns give away",
    ]


def _role(declared: Sequence[Declared], role: str) -> list[str]:
    sent = list(dict.fromkeys(item.message.__name__ for item in declared if item.sender == role))
    received = [item for item in declared if item.receiver == role]
    return [
        f"  sends     {', '.join(sent) or 'nothing'}",
        *(
            f"  {'receives' if first == 0 else '':<9} {item.message.__name__} from {item.sender}: {item.reveals}"
            for first, item in enumerate(received)
        ),
    ]


def _sizes(job: Job, lead: Party) -> tuple[Schedule, int]:
    """The schedule and the outputs."""
    loss = job.model.loss
    assert lead.y is not None
    schedule = Schedule(
        len(lead),
        batch_size=job.batch_size,
        epochs=job.epochs,
        seed=job.seed,
        test_fraction=job.test_fraction,
        reshuffle=job.reshuffle,
    )
    return schedule, loss.outputs(loss.classes(lead.y))


def _equations(job: Job, name: str, known: tuple[Party, list[Party]] | None) -> list[str]:
    residual = job.protocol.residual
    if isinstance(residual, OpenResidual) and residual.defence is not None:
        return [f"  learns    g of every row of every batch, blurred once a visit ({residual.defence.promise})"]
    if not residual.seals:
        return ["  learns    g of every row of every batch: its sign is the label"]
    if known is None:
        return [
            "  learns    its own gradient: p equations about the n x c residuals of a batch; the share p / (n c)",
            "            projects the labels and is a leak that larger batches make smaller",
        ]
    lead, others = known
    schedule, outputs = _sizes(job, lead)
    rows, X = schedule.smallest_batch, next(party for party in others if party.name == name).X
    p = X.shape[1] * outputs
    times = (
        f"new in each of {job.epochs} epochs" if job.reshuffle else f"the same {schedule.batches} batches every epoch"
    )
    auc = expected_label_auc(p, rows, outputs, job.epochs, job.reshuffle)
    return [
        f"  learns    its own gradient: p = {p} equations about n x c = {rows * outputs} residuals a batch, {times};",
        f"            the share p / (n c) = {p / (rows * outputs):.3f} projects the labels: a leak that larger batches "
        "make smaller",
        f"            from columns of noise it tells labels to an AUC of {auc:.2f}, from real columns to more",
        *_alone(job, X, schedule),
    ]


def _alone(job: Job, X: Floats, schedule: Schedule) -> list[str]:
    """A line if rows of the party stand nearly alone in their batches."""
    mean, deviation = moments(X, schedule.flow) if job.scale == "standard" else (np.zeros(1), np.ones(1))
    found = measure((X[rows] - mean) / np.where(deviation > 0, deviation, 1.0) for rows in schedule.partition(0))
    if not found.alone:
        return []
    return [
        f"            {found.alone} rows of {found.rows} stand nearly alone (rare values, leverage up to "
        f"{found.largest:.2f}): their residual, and so label, is nearly opened"
    ]


def _leaks(job: Job, known: tuple[Party, list[Party]] | None) -> list[str]:
    if known is None:
        return []
    lead, others = known
    try:
        schedule, outputs = _sizes(job, lead)
    except LabelError as error:
        return ["", f"would be refused: {error}"]
    columns = {party.name: party.X.shape[1] for party in others}
    return [
        ("\naccepted: " if leak.name in job.accepts else "\nwould be refused: ") + str(leak)
        for leak in leaks(job, columns, batch_rows=schedule.smallest_batch, outputs=outputs, rows=len(schedule.train))
    ]
