"""The plan of a training on secret shares: the coefficients that combine gradients into weights, known in advance.

Let X be a party's columns in a batch of n rows, g the residuals and theta its weights. An optimizer can train on shares
if its steps are linear in g, with coefficients that are fixed in advance. All Q local steps of an iteration use the
same g, at the active party as well, so together they are one linear map; Q local steps are worth no more than one
larger step. Each iteration computes

    theta' = a * theta - b * u,      u = X^T g / n

The numbers a and b result from applying the update rule to numbers. If the rule remembers earlier iterations
(momentum), theta is a linear combination of all u; its coefficients result from applying the rule to vectors with one
entry for each iteration. A rollback returns the training to the weights of an earlier iteration. A step is safe if it
cannot increase the loss, whatever columns the parties have. An evaluation computes the loss on the held-out rows. To
open weights means to disclose them to the party that they belong to. Reason codes name the columns that affect a score
most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.disclosure.information_content import code_bits
from securevfl.errors import ConfigError
from securevfl.families.shares.shares_job import SharesJob, takes_scalar_steps
from securevfl.models.pair_components import COMPONENT_STEP, pair_ridge
from securevfl.models.rounding_error import SumRounding
from securevfl.optim.block_descent import BlockDescent, heavy_ball
from securevfl.optim.fedbcd import FedBCD
from securevfl.protocols.shares.fixed_point import FixedPointEncoding
from securevfl.protocols.shares.opened_weights import WeightQuantizer
from securevfl.protocols.shares.pair_weights import PairParams
from securevfl.protocols.shares.update_rules import (
    Coefficients,
    Descent,
    FixedCoefficients,
    LinearRule,
    ScheduledDescent,
)

RESIDUAL_BITS = 8  # fractional bits of residuals up to 64
# from this number of rows on, short table entries are faster, although extending ("lifting") them takes a round trip
MIN_LIFTED_ROWS = 2048
# bits of a short table entry: for losses whose residuals lie in an interval of length 1, and for all other losses
UNIT_LIFT_BITS, WIDE_LIFT_BITS = 8, 16
# in a mean of iterates (the weights after each iteration), iterate t has the weight t^MEAN_WEIGHT_POWER
MEAN_WEIGHT_POWER = 2
MEAN_FRACTION = 5  # with the heavy-ball method, the result is the mean of the latest fifth of all iterates
ROUNDING_CARRY = 1.4  # factor by which momentum amplifies rounding errors (1.24 to 1.55 in simulations)
MAX_REMEMBERED_ITERATIONS = 2048
# a training with l2 needs this number of iterations times the square root of the condition number of its objective; the
# error of the weights is then e^-3 of that at the start
MAX_PAIR_NUMBERS = 1 << 29  # products of all rows: at most 3.8 GB on disk at each share holder, with 7 bytes each
ROOTS_PER_TRAINING = 1.5

Combination = Callable[[int], Floats]
"""A function that maps t, a number of iterations, to the coefficients (t,) of their gradients."""
Rollbacks = Sequence[tuple[int, int]]
"""For each rollback, the number of iterations before it and the number of the iteration that it returned to."""


class MomentumMethod(Enum):
    """The momentum of block descent: the heavy-ball method, Nesterov's, or Nesterov's with a mean of all iterates."""

    HEAVY_BALL = "heavy_ball"
    NESTEROV = "nesterov"
    SMOOTHED = "smoothed"


@dataclass(frozen=True)
class Plan:
    """The coefficients and number formats of a training.

    Attributes:
        rate: the largest step size, with which the preprocessed matrices are multiplied.
        rule: combines the gradients u into weights.
        numbers: the fixed-point format of all numbers.
    """

    rate: float
    rule: LinearRule
    numbers: FixedPointEncoding


def make_plan(
    job: SharesJob, *, rows: int, batches: int, parties: int, inputs: int = 0, rollbacks: Rollbacks = ()
) -> Plan:
    """Compute the plan of a job.

    ConfigError is raised if numbers need too many bits, or momentum has over `MAX_REMEMBERED_ITERATIONS` iterations.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        rows: number of rows of the largest batch.
        batches: number of batches of an epoch.
        parties: number of parties.
        inputs: number of inputs of all parties together, with the intercept; only a job with l2 needs it.
        rollbacks: for each rollback, the number of iterations before it and the iteration that it returned to.

    Returns:
        The plan.
    """
    optimizer, iterations = job.optimizer, job.epochs * batches
    if isinstance(optimizer, BlockDescent):
        momentum = _momentum_of(job, batches)
        # the weights of pairs are one more block, so safe steps are shorter; evaluations would detect longer ones
        blocks = parties + (job.model.pair_rank > 0 and not job.evaluates_between_rounds)
        curvature, penalty = job.loss.curvature or 1.0, None
        if takes_scalar_steps(job):
            bound = curvature_sum(job, inputs)
            curvature, penalty = max(1.0, bound / parties), _penalty_of(job, bound)
        if optimizer.momentum or penalty is not None:
            _check_remembered(job.epochs, batches)
        rate, rule = _block_descent(optimizer, iterations, blocks, rollbacks, momentum, penalty, job.model.pair_rank)
    else:
        rate, rule = _descent(job, optimizer, batches, parties)
        curvature = 1.0
    shares = job.protocol.shares
    lift_bits, residual_bits = 0, _residual_bits(job.residual_bound)
    if rows >= MIN_LIFTED_ROWS:
        lift_bits = UNIT_LIFT_BITS if job.loss.has_unit_range else WIDE_LIFT_BITS
        residual_bits = min(residual_bits, lift_bits - 1)
    numbers = FixedPointEncoding.finest(
        rows,
        rate,
        curvature=curvature,
        m=rule.m,
        table_bits=shares.table_bits,
        f_g=residual_bits,
        lift_bits=lift_bits,
        step=shares.step_bits(job.model.loss.spacing),
        clip=shares.clip,
        spare=job.model.spare_bits,
        step_bits=job.model.step_bits,
    )
    return Plan(rate, rule, numbers)


@dataclass(frozen=True)
class Penalty:
    """The l2 penalty in relation to the bound of the objective's curvature.

    Attributes:
        decay: the share of the weights that the penalty removes in a step of the size 1 / bound: l2 / bound; 0 for an
            intercept.
        root: the square root of the condition number bound / l2, because the curvature is at least l2 in all
            directions.
    """

    decay: float
    root: float


def curvature_sum(job: SharesJob, inputs: int) -> float:
    """Return a bound on the curvature of the mean loss plus penalty, from public numbers only.

    Columns have a variance of at most 1, so the largest eigenvalue of X^T X / n is at most its trace, the number of
    inputs of all parties.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        inputs: number of inputs of all parties together, with the intercept.

    Returns:
        The bound.
    """
    assert inputs, "a job with l2 needs the number of inputs"
    return (job.loss.curvature or 1.0) * inputs + job.model.l2


def _penalty_of(job: SharesJob, bound: float) -> Penalty:
    decay = job.model.l2 / bound
    return Penalty(decay, 1 / math.sqrt(decay))


def scalar_step(job: SharesJob, *, inputs: int, parties: int) -> float:
    """Return the number by which all parties multiply gradients, in addition to the plan's rate.

    The rate is the optimizer's first step size divided by the number of parties, so this number is multiplied by
    `parties`.
    """
    return parties / curvature_sum(job, inputs)


def penalised_iterations(job: SharesJob, inputs: int) -> int:
    """Return the number of iterations after which a training with l2 is close to its optimum."""
    return math.ceil(ROOTS_PER_TRAINING / math.sqrt(job.model.l2 / curvature_sum(job, inputs)))


def sum_rounding(job: SharesJob) -> SumRounding:
    """Return the error with which a training on shares rounds the outputs f.

    In each iteration, rounding to the steps of the lookup table has a standard deviation of step / sqrt(6). The mean
    over late iterations removes most of it. Momentum carries it from one iteration to the next, which adds two fifths.
    """
    step = 2.0 ** job.protocol.shares.step_bits(job.model.loss.spacing)
    remedy = (
        f"to reduce it, set protocol.shares.step below {step:g} and table_bits = 8, which cover outputs of up to 128 "
        "steps; for amounts, and for counts that vary far more than Poisson counts, use model = 'gamma'"
    )
    return SumRounding(ROUNDING_CARRY * step / math.sqrt(6) * math.sqrt(2 / max(2, job.epochs)), remedy)


def pair_params(job: SharesJob, plan: Plan, components: tuple[int, int], rows: int) -> PairParams:
    """Return the parameters of products of components.

    The products have a variance of about 1 and are nearly uncorrelated, so a party's matrix (`optim/block_descent.py`)
    would nearly be a multiple of the identity. All weights of products take steps of this one public size.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        plan: the plan of the training.
        components: the numbers of components of the active party and of its partner.
        rows: number of training rows.

    Returns:
        The parameters.

    Raises:
        ConfigError: if there are more products than can be shared, or their weights need too many bits.
    """
    active, partner = components
    if rows * active * partner > MAX_PAIR_NUMBERS:
        raise ConfigError(
            f"model.pairs: {active} x {partner} products of {rows:,} rows are {rows * active * partner:,} numbers, and "
            f"at most {MAX_PAIR_NUMBERS:,} can be shared",
            f"set pairs to at most {math.isqrt(MAX_PAIR_NUMBERS // rows)}, or train on fewer rows",
            code="SVFL-JOB-TOO-LARGE",
            limit=MAX_PAIR_NUMBERS,
        )
    step = plan.rate / ((job.loss.curvature or 1.0) + pair_ridge(rows, active * partner))
    shortest = 1.0
    if can_roll_back(job) and isinstance(job.optimizer, BlockDescent):
        _, shortest = _step_sizes(job.optimizer, 1, job.model.pair_rank)
    return PairParams.of(
        plan.numbers, active=active, partner=partner, component=COMPONENT_STEP, step=step, shortest=shortest
    )


def weight_levels(job: SharesJob, rows: int) -> WeightQuantizer:
    """Return the quantizer of opened weights that were trained on `rows` rows."""
    return WeightQuantizer.of(rows, job.model.loss.curvature or 1.0)


def reason_code_bits(job: SharesJob, name: str, columns: int) -> float:
    """Return how many bits about a scored row a party's reason codes disclose; 0 if it sends none.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        name: name of the party.
        columns: number of columns of the party.

    Returns:
        The number of bits.
    """
    return code_bits(columns, job.reason_codes) if name in job.protocol.shares.open_weights else 0.0


def _residual_bits(bound: float) -> int:
    """Return the number of fractional bits of residuals: 8 for a bound up to 64, one less for each doubling of it."""
    return RESIDUAL_BITS - max(0, math.ceil(math.log2(bound / 64)))


def _descent(job: SharesJob, optimizer: FedBCD, batches: int, parties: int) -> tuple[float, LinearRule]:
    """Return the step size, and the rule that combines gradients into weights, of an optimizer with linear updates."""
    l2, iterations = job.model.l2, job.epochs * batches
    etas = [optimizer.eta(t, parties) for t in range(iterations)]
    if _has_memory(optimizer):
        _check_remembered(job.epochs, batches)
        responses = _responses(optimizer, etas, l2)
        intercept = _responses(optimizer, etas, 0.0) if l2 else None
        rate = float(responses[1][0])
        return rate, FixedCoefficients(
            _scaled(responses, rate), last=None if intercept is None else _scaled(intercept, rate)
        )
    decay_and_step: dict[float, tuple[float, float]] = {}
    for eta in etas:
        if eta not in decay_and_step:
            decay = _iterate(optimizer, eta, l2, 1.0, 0.0)[0]
            decay_and_step[eta] = decay, -_iterate(optimizer, eta, l2, 0.0, 1.0)[0]
    steps = [decay_and_step[eta][1] for eta in etas]
    rate = max(steps)
    rates = tuple(step / rate for step in steps) if len(decay_and_step) > 1 else ()
    decays: tuple[float, ...] = ()
    if l2:
        by_iteration = np.array([decay_and_step[eta][0] for eta in etas]).reshape(job.epochs, batches)
        decays = tuple(by_iteration.prod(axis=1).tolist())
    if not rates and not decays:
        return rate, Descent()
    return rate, ScheduledDescent(rates, decays, batches, rate_bits=6 if decays else 8)


def _iterate(optimizer: FedBCD, eta: float, l2: float, theta: Any, g: Any, memory: Any = None) -> tuple[Any, Any]:
    """Return theta and the rule's memory after the local steps of one iteration on a constant gradient."""
    rule = optimizer.update
    memory = rule.begin(rule.init(theta) if memory is None else memory)
    for _ in range(optimizer.steps):
        change, memory = rule.step(g + l2 * theta, memory, eta)
        theta = theta + change
    return theta, memory


def _has_memory(optimizer: FedBCD) -> bool:
    """Whether the update rule has memory, so that a gradient also changes the weights in later iterations."""
    first, memory = _iterate(optimizer, 1.0, 0.0, 0.0, 1.0)
    return bool(_iterate(optimizer, 1.0, 0.0, first, 0.0, memory)[0] != first)


def _responses(optimizer: FedBCD, etas: Sequence[float], l2: float) -> list[Floats]:
    """Return a list of vectors; vector t (t,) states by how much each of the first t gradients has reduced theta."""
    iterations, memory = len(etas), None
    theta, responses = np.zeros(iterations), [np.zeros(0)]
    for s, eta in enumerate(etas):
        theta, memory = _iterate(optimizer, eta, l2, theta, np.eye(1, iterations, s)[0], memory)
        responses.append(-theta[: s + 1])
    return responses


def can_roll_back(job: SharesJob, rollbacks: Rollbacks = ()) -> bool:
    """Whether an evaluation can make the training roll back.

    That is so if the job may roll back at all, and steps after the rollbacks so far are longer than the size that is
    safe for any columns. Steps of pairs are safe only if they are 0.
    """
    optimizer = job.optimizer
    if not (isinstance(optimizer, BlockDescent) and optimizer.momentum and job.may_roll_back):
        return False
    size, pair_size = _step_sizes(optimizer, len(rollbacks), job.model.pair_rank)
    return size * optimizer.first > 1 or pair_size > 0


def _step_sizes(optimizer: BlockDescent, rollbacks: int, pair_rank: int) -> tuple[float, float]:
    """Return the step sizes of additive weights and of weights of pairs after some rollbacks, as parts of the first.

    Without pairs, every rollback halves the step. With pairs, additive weights take safe steps after the first one.
    Let r be the largest number of components of a party. If both parties have the same components, whitened and about
    normal, then the largest eigenvalue of the second moments of their products is r + 2, and for independent components
    it is 1. So weights of pairs start at 0 again after the first rollback, with the additive steps divided by
    r + 2. If the loss increases nevertheless, they stay at 0 from the second rollback on, and every step is safe.
    """
    if not pair_rank:
        return 0.5**rollbacks, 0.0
    if not rollbacks:
        return 1.0, 1.0
    size = min(1.0, 1 / optimizer.first)
    return size, size / (pair_rank + 2) if rollbacks == 1 else 0.0


def _momentum_of(job: SharesJob, batches: int) -> MomentumMethod:
    """Return the momentum of a job's block descent, for this number of batches of an epoch."""
    if job.model.loss.reports_standard_errors:
        return MomentumMethod.SMOOTHED
    return MomentumMethod.NESTEROV if batches > 1 or job.model.ends_early else MomentumMethod.HEAVY_BALL


def _block_descent(
    optimizer: BlockDescent,
    iterations: int,
    parties: int,
    rollbacks: Rollbacks,
    momentum: MomentumMethod,
    penalty: Penalty | None,
    pair_rank: int,
) -> tuple[float, LinearRule]:
    """Return the step size and the rule of block descent.

    Gradients are computed at points y, and the model is the last y or a mean of the latest ones (`_mean_weights`), also
    if the training ends early. A step of size 1 is safe: it decreases the loss for any columns. After a rollback the
    training continues from the y of an earlier iteration with shorter steps (`_step_sizes`), and momentum starts again.
    The gradients since that iteration have no effect. Steps of the first `optimizer.warm_up` iterations are at most 1.

    Args:
        optimizer: the options of block descent, such as its step size.
        iterations: number of iterations.
        parties: number of parties.
        rollbacks: for each rollback, the number of iterations before it and the iteration that it returned to.
        momentum: the form of the momentum while steps are safe; longer ones use Nesterov's.
        penalty: the l2 penalty, or None.
        pair_rank: the largest number of components of a party; 0 for a model without pairs.

    Returns:
        The step size and the rule.
    """
    rate = optimizer.first / parties
    if not optimizer.momentum and penalty is None:
        return rate, Descent()
    if pair_rank and rollbacks:  # the heavy-ball method would need safe steps of pairs as well
        momentum = MomentumMethod.NESTEROV if momentum == MomentumMethod.HEAVY_BALL else momentum
    sizes = [_step_sizes(optimizer, number, pair_rank) for number in range(len(rollbacks) + 1)]
    additive = [size for size, _ in sizes]
    points, models = _combinations(optimizer, iterations, rollbacks, momentum, penalty, additive)
    rule = FixedCoefficients(_as_list(points), result_row=_as_list(models))
    if pair_rank and rollbacks:
        of_pairs = [pair_size for _, pair_size in sizes]
        points, models = _combinations(optimizer, iterations, rollbacks, momentum, penalty, of_pairs, from_zero=True)
        rule = replace(rule, pair_row=_as_list(points), pair_result_row=_as_list(models))
    if penalty is None:
        return rate, rule
    # the intercept has no penalty, but takes the same steps with the same momentum as all weights
    points, models = _combinations(optimizer, iterations, rollbacks, momentum, replace(penalty, decay=0.0), additive)
    return rate, replace(rule, last=_as_list(points), last_of_result=_as_list(models))


def _combinations(
    optimizer: BlockDescent,
    iterations: int,
    rollbacks: Rollbacks,
    momentum: MomentumMethod,
    penalty: Penalty | None,
    sizes: Sequence[float],
    *,
    from_zero: bool = False,
) -> tuple[Combination, Combination]:
    """Return functions that map t to the coefficients (t,) of all gradients so far; see `_block_descent`.

    `sizes` has the step size before the first rollback and after each one, as parts of the optimizer's step size. After
    a rollback the weights continue from those of an earlier iteration, or from 0 if `from_zero`.

    The first one is for the point y after t iterations, the second one for the model, which may be a mean of the points
    since the last rollback.
    """
    targets, decay = dict(rollbacks), 0.0 if penalty is None else optimizer.first * penalty.decay
    root = None if penalty is None else penalty.root
    number, step, start = 0, 1.0, 0
    steps = _steps(optimizer, momentum, 1.0, iterations, root)
    previous, y, rows = np.zeros(iterations), np.zeros(iterations), [np.zeros(0)]
    phases = list[tuple[int, bool]]()  # for each t, the last rollback before it, and whether heavy-ball steps follow it
    for s in range(iterations + 1):
        if s in targets:
            number, start = number + 1, s
            step = sizes[number]
            steps = _steps(optimizer, momentum, step, iterations - s, root)
            restarts = from_zero and s < iterations  # the last evaluation restores a model and trains no further
            restored = np.zeros(s) if restarts else rows[targets[s]]
            previous = y = -np.pad(restored, (0, iterations - len(restored)))
            rows[s] = -y[:s]
        phases.append((start, bool(steps)))
        if s == iterations:
            break
        size = min(step, 1 / optimizer.first) if s < optimizer.warm_up else step
        gradient = size * (np.eye(1, iterations, s)[0] + decay * y)
        if steps:
            length, factor = steps[s - start]
            y, previous = y - length * gradient + factor * (y - previous), y
        else:
            point = y - gradient
            y = point + optimizer.extrapolation(s + 1 - start) * (point - previous)
            previous = point
        rows.append(-y[: s + 1])

    def model(t: int) -> Floats:
        start, is_heavy_ball = phases[t]
        weights = _mean_weights(momentum, t - start, is_heavy_ball)
        latest = [np.pad(row, (0, t - len(row))) for row in rows[t + 1 - len(weights) : t + 1]]
        return np.average(latest, axis=0, weights=weights) if weights else rows[t]

    return rows.__getitem__, model


def _steps(
    optimizer: BlockDescent, momentum: MomentumMethod, step: float, iterations: int, root: float | None
) -> list[tuple[float, float]]:
    """Return (step size, momentum factor) of each remaining iteration; empty unless the heavy-ball method is used."""
    is_safe = optimizer.first * step <= 1
    return heavy_ball(iterations, root) if momentum == MomentumMethod.HEAVY_BALL and is_safe else []


def _mean_weights(momentum: MomentumMethod, iterations: int, is_heavy_ball: bool) -> list[float]:
    """Return the weights of a mean of the latest iterates, which is the model (Polyak and Juditsky 1992).

    They are empty if the model is the last iterate alone.

    A mean removes most of the rounding of sums (`sum_rounding`). If the model reports standard errors, the mean
    contains all iterates but the start, weighted by the square of their numbers. With the heavy-ball method it contains
    the latest fifth of them.
    """
    if momentum == MomentumMethod.SMOOTHED:
        return (np.arange(1.0, iterations + 1) ** MEAN_WEIGHT_POWER).tolist()
    return [1.0] * (iterations // MEAN_FRACTION) if is_heavy_ball else []


def _as_list(combination: Combination) -> Coefficients:
    return lambda t: combination(t).tolist()


def _scaled(rows: Sequence[Floats], rate: float) -> Coefficients:
    return lambda t: (rows[t] / rate).tolist()


def _check_remembered(epochs: int, batches: int) -> None:
    """Raise ConfigError, with a remedy that suffices, if momentum would have to remember too many iterations."""
    iterations = epochs * batches
    if iterations > MAX_REMEMBERED_ITERATIONS:
        remedies = list[str]()
        if batches > 1 and epochs <= MAX_REMEMBERED_ITERATIONS:
            remedies.append('set batch_size = "all"')
        if batches <= MAX_REMEMBERED_ITERATIONS:
            remedies.append(f"set epochs to at most {MAX_REMEMBERED_ITERATIONS // batches}")
        both = f'set batch_size = "all" and epochs to at most {MAX_REMEMBERED_ITERATIONS}'
        raise ConfigError(
            f"momentum on shares can remember at most {MAX_REMEMBERED_ITERATIONS} iterations, and this job has "
            f"{iterations}",
            " or ".join(remedies) or both,
            code="SVFL-JOB-TOO-LARGE",
            limit=MAX_REMEMBERED_ITERATIONS,
        )
