"""The coefficients of a training on shares, from its optimizer: how weights are combined of gradients, known ahead.

An optimizer fits if its steps are linear in the residual of a visit with numbers that are fixed beforehand. All Q local
steps of a visit are taken on the residual of that visit, at the active party as well, so they are one linear map: a
local step more costs nothing, and is worth no more than a larger step. Each visit leaves

    theta' = a theta - b u,      u = X^T g / n

with a, b from the update rule run on numbers, and where the rule remembers earlier visits (momentum), theta is a
combination of all u whose coefficients come from the same rule run on vectors with one entry a visit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.disclosure.information_content import code_bits
from securevfl.errors import ConfigError
from securevfl.families.shares.shares_job import SharesJob
from securevfl.models.rounding_error import SumRounding
from securevfl.optim.block_descent import BlockDescent
from securevfl.optim.fedbcd import FedBCD
from securevfl.protocols.shares.fixed_point import FixedPointEncoding
from securevfl.protocols.shares.opened_weights import WeightQuantizer
from securevfl.protocols.shares.update_rules import (
    Coefficients,
    Descent,
    FixedCoefficients,
    LinearRule,
    ScheduledDescent,
)

RESIDUAL_BITS = 8  # of residuals up to 64
MEAN_WEIGHT_POWER = 2  # the power of the number of a visit that its point counts by in the mean
ROUNDING_CARRY = 1.4  # times what is rounded in a visit is in the next ones (simulated: 1.24 to 1.55)
MAX_REMEMBERED_ITERATIONS = 2048  # visits of a rule that remembers all of them


@dataclass(frozen=True)
class Plan:
    """rate: the step size that is in W; rule: what its changes are combined by; numbers: the bits of everything."""

    rate: float
    rule: LinearRule
    numbers: FixedPointEncoding


Rollbacks = Sequence[tuple[int, int]]  # by turn: the visits so far, and of them those gone back to


def make_plan(job: SharesJob, *, rows: int, batches: int, parties: int, turned: Rollbacks = ()) -> Plan:
    """Make the plan of a job whose largest batch has `rows` rows, and that has turned back so often. Raises ConfigError
    if its numbers need more bits than there are, or a rule would have to remember more visits than MOST_REMEMBERED."""
    optimizer, visits = job.optimizer, job.epochs * batches
    rate, rule = (
        _block_descent(optimizer, visits, parties, turned, smoothed=job.model.loss.reports_standard_errors)
        if isinstance(optimizer, BlockDescent)
        else _steps(job, optimizer, batches, parties)
    )
    shares = job.protocol.shares
    curved = job.loss.curvature if isinstance(optimizer, BlockDescent) else None
    numbers = FixedPointEncoding.finest(
        rows,
        rate,
        curvature=curved or 1.0,
        m=rule.m,
        table_bits=shares.table_bits,
        f_g=_residual_bits(job.residual_bound),
        step=shares.step_bits(job.model.loss.spacing),
        clip=shares.clip,
        spare=job.model.spare_bits,
        step_bits=job.model.step_bits,
    )
    return Plan(rate, rule, numbers)


def sum_rounding(job: SharesJob) -> SumRounding:
    """Return how sums of f are rounded: each visit by sqrt(1/6) steps of the table, which the mean over late visits
    takes most of out again. What momentum carries from one visit to the next adds two fifths."""
    step = 2.0 ** job.protocol.shares.step_bits(job.model.loss.spacing)
    remedy = (
        f"to have less of it, set a smaller protocol.shares.step than {step:g} and table_bits = 8, which cover sums of "
        "128 steps; amounts, and counts that vary far more than Poisson's, are as exact as labels in model = 'gamma'"
    )
    return SumRounding(ROUNDING_CARRY * step / math.sqrt(6) * math.sqrt(2 / max(2, job.epochs)), remedy)


def weight_levels(job: SharesJob, rows: int) -> WeightQuantizer:
    """Return the levels in which weights that were trained on so many rows are told."""
    return WeightQuantizer.of(rows, job.model.loss.curvature or 1.0)


def reason_code_bits(job: SharesJob, name: str, columns: int) -> float:
    """How many bits of a scored row a party of so many columns leaves for its reason codes; 0 where it gives none."""
    return code_bits(columns, job.reason_codes) if name in job.protocol.shares.open_weights else 0.0


def _residual_bits(bound: float) -> int:
    """f_g: a bit less for each doubling of a residual's bound beyond that of scaled numbers."""
    return RESIDUAL_BITS - max(0, math.ceil(math.log2(bound / 64)))


def _steps(job: SharesJob, optimizer: FedBCD, batches: int, parties: int) -> tuple[float, LinearRule]:
    l2, visits = job.model.l2, job.epochs * batches
    etas = [optimizer.eta(t, parties) for t in range(visits)]
    if _has_memory(optimizer):
        _check_remembered(visits)
        rows, last = _responses(optimizer, etas, l2), _responses(optimizer, etas, 0.0) if l2 else None
        rate = float(rows[1][0])
        return rate, FixedCoefficients(_scaled(rows, rate), last=None if last is None else _scaled(last, rate))
    moves: dict[float, tuple[float, float]] = {}
    for eta in etas:
        if eta not in moves:
            moves[eta] = _iterate(optimizer, eta, l2, 1.0, 0.0)[0], -_iterate(optimizer, eta, l2, 0.0, 1.0)[0]
    taken = [moves[eta][1] for eta in etas]
    rate = max(taken)
    rates = tuple(each / rate for each in taken) if len(moves) > 1 else ()
    decays: tuple[float, ...] = ()
    if l2:
        kept = np.array([moves[eta][0] for eta in etas]).reshape(job.epochs, batches)
        decays = tuple(kept.prod(axis=1).tolist())
    if not rates and not decays:
        return rate, Descent()
    return rate, ScheduledDescent(rates, decays, batches, rate_bits=6 if decays else 8)


def _iterate(optimizer: FedBCD, eta: float, l2: float, theta: Any, g: Any, memory: Any = None) -> tuple[Any, Any]:
    """theta and the rule's memory after the local steps of one visit, on a gradient that stays."""
    rule = optimizer.update
    memory = rule.begin(rule.init(theta) if memory is None else memory)
    for _ in range(optimizer.steps):
        change, memory = rule.step(g + l2 * theta, memory, eta)
        theta = theta + change
    return theta, memory


def _has_memory(optimizer: FedBCD) -> bool:
    """Whether a visit still moves weights in the next one."""
    first, memory = _iterate(optimizer, 1.0, 0.0, 0.0, 1.0)
    return bool(_iterate(optimizer, 1.0, 0.0, first, 0.0, memory)[0] != first)


def _responses(optimizer: FedBCD, etas: Sequence[float], l2: float) -> list[Floats]:
    """Row t: what each of the first t gradients has taken off theta."""
    visits, memory = len(etas), None
    theta, rows = np.zeros(visits), [np.zeros(0)]
    for s, eta in enumerate(etas):
        theta, memory = _iterate(optimizer, eta, l2, theta, np.eye(1, visits, s)[0], memory)
        rows.append(-theta[: s + 1])
    return rows


def plan_of(job: SharesJob, sizes: Mapping[str, Any], parties: int) -> Plan:
    """Return the plan of a training by the sizes that its states keep."""
    rows, batches = sizes["rows"], sizes["batches"]
    return make_plan(job, rows=rows, batches=batches, parties=parties, turned=sizes.get("turned", ()))


def can_roll_back(job: SharesJob, turned: Rollbacks = ()) -> bool:
    """Whether the training turns back at an evaluation that shows it lost: its steps are longer than those that are
    safe whatever the columns, and it is evaluated in between."""
    step = job.optimizer.first / 2 ** len(turned)
    optimizer = job.optimizer
    return isinstance(optimizer, BlockDescent) and optimizer.momentum and step > 1 and job.evaluation_interval > 0


def _block_descent(
    optimizer: BlockDescent, visits: int, parties: int, turned: Rollbacks, *, smoothed: bool
) -> tuple[float, LinearRule]:
    """Gradients are taken at the extrapolated point y, and y is what the last visit leaves.

    smoothed: it leaves the mean of all points instead (Polyak and Juditsky 1992), each counted by the square of its
    number: so most of what sums were rounded by comes out again, and little of where the training began stays in
    (`sum_rounding`).

    A training that turns back goes on from the y of an earlier visit with half the step and no momentum yet, so the
    gradients since then have no part in it any more.
    """
    rate, turns = optimizer.first / parties, dict(turned)
    if not optimizer.momentum:
        return rate, Descent()
    _check_remembered(visits)
    step, start, before, y, rows = 1.0, 0, np.zeros(visits), np.zeros(visits), [np.zeros(0)]
    for s in range(visits + 1):
        if s in turns:
            step, start = step / 2, s
            before = y = -np.pad(rows[turns[s]], (0, visits - turns[s]))
            rows[s] = -y[:s]
        if s == visits:
            break
        after = y - step * np.eye(1, visits, s)[0]
        y = after + optimizer.extrapolation(s + 1 - start) * (after - before)
        before = after
        rows.append(-y[: s + 1])
    if smoothed:
        late = rows[min(start + 1, visits) :]
        padded = [np.pad(row, (0, visits - len(row))) for row in late]
        rows[visits] = np.average(padded, axis=0, weights=np.arange(1.0, len(late) + 1) ** MEAN_WEIGHT_POWER)
    return rate, FixedCoefficients(_scaled(rows, 1.0))


def _scaled(rows: Sequence[Floats], rate: float) -> Coefficients:
    return lambda t: (rows[t] / rate).tolist()


def _check_remembered(visits: int) -> None:
    if visits > MAX_REMEMBERED_ITERATIONS:
        raise ConfigError(
            f"momentum on shares remembers every visit, up to {MAX_REMEMBERED_ITERATIONS}, and there are {visits}; use "
            'larger batches (batch_size = "all") or fewer epochs'
        )
