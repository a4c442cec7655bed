"""The coefficients of a training on shares, from its optimizer: how weights are combined of gradients, known ahead.

An optimizer fits if its steps are linear in the residual of a visit with numbers that are fixed beforehand. All Q local
steps of a visit are taken on the residual of that visit, at the active party as well, so they are one linear map: a
local step more costs nothing, and is worth no more than a larger step. Each visit leaves

    theta' = a theta - b u,      u = X^T g / n

with a, b from the update rule run on numbers, and where the rule remembers earlier visits (momentum), theta is a
combination of all u whose coefficients come from the same rule run on vectors with one entry a visit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from securevfl.crypto.scheme import Floats
from securevfl.errors import ConfigError
from securevfl.optim.block_descent import BlockDescent
from securevfl.optim.fedbcd import FedBCD
from securevfl.options import JobOptions
from securevfl.protocols.share_numbers import Numbers
from securevfl.protocols.share_steps import Coefficients, Descent, FixedCoefficients, Paced, Rule

__all__ = ["MOST_REMEMBERED", "Plan", "check_optimizer", "plan"]

MOST_REMEMBERED = 2048  # visits of a rule that remembers all of them


@dataclass(frozen=True)
class Plan:
    """rate: the step size that is in W; rule: what its changes are combined by; numbers: the bits of everything."""

    rate: float
    rule: Rule
    numbers: Numbers


def check_optimizer(job: JobOptions) -> None:
    """ValueError, with the remedy, if its steps are not linear or not taken by all parties at once."""
    optimizer = job.optimizer
    if isinstance(optimizer, BlockDescent):
        if job.model.loss.curvature is None:
            raise ValueError(f"loss {job.model.loss.name} states no curvature, which steps rest on; use fedsgd")
        return
    if not isinstance(optimizer, FedBCD):
        raise ValueError(
            f"optimizer {optimizer.name}: steps that are linear in the residual were expected under shares; "
            "use fedsgd, fedpbcd, fedbcd or block_descent"
        )
    optimizer.check_set()
    if optimizer.mode != "parallel":
        raise ValueError('under shares all parties step on one residual; use mode = "parallel"')
    if not optimizer.update.linear:
        raise ValueError(
            f"rule {optimizer.update.name} is not linear in gradients, and nobody sees one under shares; use sgd, "
            "momentum or proximal"
        )


def plan(job: JobOptions, *, rows: int, batches: int, parties: int) -> Plan:
    """The plan of a job whose largest batch has so many rows. ConfigError if its numbers need more bits than there are,
    or a rule would have to remember more visits than MOST_REMEMBERED."""
    rate, rule = (
        _block_descent(job, batches, parties)
        if isinstance(job.optimizer, BlockDescent)
        else _steps(job, batches, parties)
    )
    shares = job.protocol.shares
    assert shares is not None, "a job on shares has them"
    numbers = Numbers(
        rows,
        rate,
        m=rule.m,
        table_bits=shares.table_bits,
        step=shares.step_bits(classifies=job.model.loss.classifies),
        clip=shares.clip,
    )
    return Plan(rate, rule, numbers)


def _steps(job: JobOptions, batches: int, parties: int) -> tuple[float, Rule]:
    optimizer, l2, visits = job.optimizer, job.model.l2, job.epochs * batches
    assert isinstance(optimizer, FedBCD), "it has been checked"
    etas = [optimizer.eta(t, parties) for t in range(visits)]
    if _remembers(optimizer):
        _limit(visits)
        rows, last = _responses(optimizer, etas, l2), _responses(optimizer, etas, 0.0) if l2 else None
        rate = float(rows[1][0])
        return rate, FixedCoefficients(_scaled(rows, rate), last=None if last is None else _scaled(last, rate))
    moves: dict[float, tuple[float, float]] = {}
    for eta in etas:
        if eta not in moves:
            moves[eta] = _visit(optimizer, eta, l2, 1.0, 0.0)[0], -_visit(optimizer, eta, l2, 0.0, 1.0)[0]
    taken = [moves[eta][1] for eta in etas]
    rate = max(taken)
    rates = tuple(each / rate for each in taken) if len(moves) > 1 else ()
    decays: tuple[float, ...] = ()
    if l2:
        kept = np.array([moves[eta][0] for eta in etas]).reshape(job.epochs, batches)
        decays = tuple(kept.prod(axis=1).tolist())
    if not rates and not decays:
        return rate, Descent()
    return rate, Paced(rates, decays, batches, rate_bits=6 if decays else 8)


def _visit(optimizer: FedBCD, eta: float, l2: float, theta: Any, g: Any, memory: Any = None) -> tuple[Any, Any]:
    """theta and the rule's memory after the local steps of one visit, on a gradient that stays."""
    rule = optimizer.update
    memory = rule.begin(rule.init(theta) if memory is None else memory)
    for _ in range(optimizer.steps):
        change, memory = rule.step(g + l2 * theta, memory, eta)
        theta = theta + change
    return theta, memory


def _remembers(optimizer: FedBCD) -> bool:
    """Whether a visit still moves weights in the next one."""
    first, memory = _visit(optimizer, 1.0, 0.0, 0.0, 1.0)
    return bool(_visit(optimizer, 1.0, 0.0, first, 0.0, memory)[0] != first)


def _responses(optimizer: FedBCD, etas: Sequence[float], l2: float) -> list[Floats]:
    """Row t: what each of the first t gradients has taken off theta."""
    visits, memory = len(etas), None
    theta, rows = np.zeros(visits), [np.zeros(0)]
    for s, eta in enumerate(etas):
        theta, memory = _visit(optimizer, eta, l2, theta, np.eye(1, visits, s)[0], memory)
        rows.append(-theta[: s + 1])
    return rows


def _block_descent(job: JobOptions, batches: int, parties: int) -> tuple[float, Rule]:
    """Gradients are taken at the extrapolated point y, and y is what the last visit leaves."""
    optimizer, visits = job.optimizer, job.epochs * batches
    assert isinstance(optimizer, BlockDescent), "it has been asked"
    rate = optimizer.first / parties
    if not optimizer.momentum:
        return rate, Descent()
    _limit(visits)
    before, y, rows = np.zeros(visits), np.zeros(visits), [np.zeros(0)]
    for s in range(visits):
        after = y - np.eye(1, visits, s)[0]
        y = after + optimizer.extrapolation(s + 1) * (after - before)
        before = after
        rows.append(-y[: s + 1])
    return rate, FixedCoefficients(_scaled(rows, 1.0))


def _scaled(rows: Sequence[Floats], rate: float) -> Coefficients:
    return lambda t: (rows[t] / rate).tolist()


def _limit(visits: int) -> None:
    if visits > MOST_REMEMBERED:
        raise ConfigError(
            f"momentum on shares remembers every visit, up to {MOST_REMEMBERED}, and there are {visits}; use larger "
            'batches (batch_size = "all") or fewer epochs'
        )
