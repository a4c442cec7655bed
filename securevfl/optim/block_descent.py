"""Block descent: each party multiplies its gradients by a matrix that it computes from its columns.

All K parties update their blocks of weights theta_k at once: theta_k -= lr / K * P_k X_k^T g / n with

    P_k = (c * X_k^T X_k / n + ridge * I)^-1

X_k are the party's columns in n rows, g the residuals and c the largest curvature of the loss. This is Newton's step on
one block, with a bound in place of the Hessian H (Boehning and Lindsay 1988). With lr = 1 the sum of K such steps never
overshoots: the eigenvalues of P H, with the matrix P of all blocks, are between 0 and 1. `momentum` is the heavy-ball
method for lr <= 1 on all rows (`heavy_ball`), otherwise Nesterov's (1983): gradients at points extrapolated by (t - 1)
/ (t + 2) in iteration t. Its factors are known in advance and a party computes P_k alone, so this optimizer can train
on secret shares. It needs few iterations on large batches. An evaluation opens the sum of the losses on held-out rows
to the party with labels. If the loss has increased, the training may roll back: it returns to its best model and takes
shorter steps.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from pydantic import Field

from securevfl.optim.optimizer import Optimizer

CONDITION_GROWTH = 0.7
"""Increase in each iteration of the square root of the condition number that `heavy_ball` assumes for P H."""
CONDITION_SHARE = 0.35
"""Largest square root of the assumed condition number, divided by the number of iterations."""
MAX_CONDITION_ROOT = 30.0
"""Largest square root of the assumed condition number for any number of iterations. The momentum of a larger one would
amplify the rounding of sums."""

ITERATION_FACTOR, MIN_CURVATURE_SHARE = 8.0, 1e-4
"""`iterations_for` returns ITERATION_FACTOR / sqrt(curvature_share / 2) iterations, and uses at least
MIN_CURVATURE_SHARE for curvature_share / 2."""
TOLERATED_SHARE = 0.8
"""A training with at least this share of the iterations that it needs is accepted without a notice."""
REFERENCE_ROWS = 20_000
"""Number of rows up to which `iterations_for` does not depend on the number of rows."""
FIRST_EVALUATIONS, EVALUATION_GROWTH = (8, 12, 18, 30), 1.5
"""A training that may stop early is evaluated after these numbers of iterations, and from then on whenever the number
has grown by the factor EVALUATION_GROWTH."""
MIN_LAST_GROWTH = 1.2
"""An evaluation takes place only if the whole training has at least this number times as many iterations, because it is
evaluated at its end anyway."""


def heavy_ball(iterations: int, root: float | None = None) -> list[tuple[float, float]]:
    """Return the steps and momentum factors of the heavy-ball method for eigenvalues of P H between 0 and 1.

    theta_{t+1} = theta_t - step_t P g_t + factor_t (theta_t - theta_{t-1}). The optimal step and factor follow
    from the smallest eigenvalue (Polyak 1964). In iteration t, it is assumed to be 1 / condition_t. The condition
    number grows with t, so that early, large gradients do not carry the weights too far; its largest value grows with
    the number of iterations. More iterations thus also reach directions of small curvature, such as those of rare
    classes.

    Args:
        iterations: the number of iterations.
        root: the square root of the condition number of P H, if it is known, as with an l2 penalty.

    Returns:
        A step and a factor for each iteration.
    """
    largest = min(root or MAX_CONDITION_ROOT, MAX_CONDITION_ROOT, 1 + CONDITION_SHARE * iterations)
    roots = [min(largest, 1 + CONDITION_GROWTH * (t + 1)) for t in range(iterations)]
    return [(4 / (1 + 1 / root) ** 2, ((root - 1) / (root + 1)) ** 2) for root in roots]


def iterations_for(curvature_share: float, rows: int = REFERENCE_ROWS) -> int:
    """Return the number of heavy-ball iterations that bring coefficients to about 0.2 standard errors of the optimum.

    Fewer leave several standard errors in directions of small curvature. The distance from the optimum shrinks
    geometrically, and standard errors shrink with the root of the number of rows.

    Args:
        curvature_share: mean curvature of the loss relative to its bound, such as 4 r (1 - r) for two classes with a
            rate of r.
        rows: number of training rows.

    Returns:
        The number. At 20,000 rows it is 41 for a rate of 0.02, and 81 for 0.005; at 150,000 rows it is 49
        and 97.
    """
    more = max(1.0, math.log(max(rows, 1)) / math.log(REFERENCE_ROWS))
    return math.ceil(more * ITERATION_FACTOR / math.sqrt(max(curvature_share / 2, MIN_CURVATURE_SHARE)))


def rounded_iterations(iterations: int) -> int:
    """Return the smallest number of the form 10 * 2^k or 15 * 2^k that is at least `iterations`.

    All parties learn the number. It shows only roughly how rare the rarest class is.
    """
    octave = 10 * 2 ** max(0, math.ceil(math.log2(max(iterations, 1) / 10)))
    return 3 * octave // 4 if iterations <= 3 * octave // 4 and octave > 10 else octave


def early_stop_rounds(rounds: int, after: int = 0) -> tuple[int, ...]:
    """Return after which iterations a training that may stop early is evaluated.

    The distances grow with the number of iterations, because each evaluation sends about as many bytes as two
    iterations and opens a sum of losses, and because gains shrink geometrically.

    Args:
        rounds: number of iterations of the whole training.
        after: number of first iterations that use a part of the rows; none of their models is evaluated.

    Returns:
        The numbers of iterations, ascending. The last one is `rounds`.
    """
    chosen = [number for number in FIRST_EVALUATIONS if number * MIN_LAST_GROWTH <= rounds]
    number = int(FIRST_EVALUATIONS[-1] * EVALUATION_GROWTH)
    while number * MIN_LAST_GROWTH <= rounds:
        chosen.append(number)
        number = int(number * EVALUATION_GROWTH)
    return (*(number for number in chosen if number > after), rounds)


class BlockDescent(Optimizer):
    """Preconditioned block coordinate descent.

    If a linear model has l2 above 0, no party multiplies by a matrix: all take steps of one public size, which follows
    from the number of columns, and l2 is a penalty as in other modes. Small values of l2 then need more epochs.
    """

    name: ClassVar[str] = "block_descent"
    family: ClassVar[str] = "shares"
    grows: ClassVar[bool] = True
    lr: float = Field(default=1.0, gt=0, le=1e12)
    """Step size in units of the safe step. If it is larger than 1 and an evaluation shows that the loss has increased,
    the training rolls back to its best model and halves the step, down to 1. On most tables, 2 needs half the
    iterations."""
    warm_up: int = Field(default=0, ge=0, le=100_000)
    """Number of first iterations whose steps are at most safe ones, of size 1. With long steps throughout, models that
    overfit have passed their best weights before the first evaluation."""
    decay: Literal["none"] = "none"
    momentum: bool = True
    """Whether steps have momentum: the heavy-ball method for safe steps on all rows, Nesterov's otherwise."""
    early_stop: float | None = Field(default=None, gt=0, le=1e12)
    """Stops the training when the loss has decreased by less than this value since the last evaluation, such as 0.0005.
    Evaluations take place after 8, 12, 18 and 30 iterations, then after half as many more each time, and at the end.
    Each one opens a sum of losses, and the party with labels decides whether all continue. The result is the
    last model, or the best one if the loss of the last one is larger by more than this value and three standard
    deviations of the rounding of a measured loss. `batch_size`, `epochs` and `test_fraction` have the values of a job
    without an optimizer by default."""
    ridge: float = Field(default=1e-2, gt=0, le=1e12)
    """Value that is added to the curvature; it shortens steps in directions in which a party's columns hardly vary."""

    @property
    def label(self) -> str:
        """The optimizer's name in tables of costs."""
        return "BlockDescent"

    @property
    def may_overshoot(self) -> bool:
        """Whether steps are longer than the safe step, so that the training may have to roll back."""
        return self.momentum and self.first > 1

    @property
    def smallest_gain(self) -> float | None:
        """The value of `early_stop`."""
        return self.early_stop

    def without_early_stop(self) -> BlockDescent:
        """Return the optimizer that runs all iterations."""
        return self if self.early_stop is None else self.model_copy(update={"early_stop": None})

    def evaluation_rounds(self, rounds: int, after: int) -> tuple[int, ...]:
        """Return the rounds after which a training that may stop early is evaluated; empty if it may not."""
        return () if self.early_stop is None else early_stop_rounds(rounds, after)

    def extrapolation(self, iteration: int) -> float:
        """Return the extrapolation in an iteration, numbered from 1, in units of the latest change of the weights."""
        return (iteration - 1) / (iteration + 2) if self.momentum else 0.0
