"""The curvature of a party's own block, which its columns alone tell: a bound that holds wherever the weights are.

For a loss whose second derivative by f is at most c (`Loss.curvature`) the objective's Hessian by one party's weights
theta_k, all others held, is at most

    B_k = c X_k^T X_k / n + l2 I            (Boehning and Lindsay 1988; for several outputs Boehning 1992)

so a step of P_k = B_k^-1 times the gradient never makes the objective rise. Nobody has to be asked for P_k. With
several outputs the same P_k serves each: c is then the largest eigenvalue of the bound over the outputs. Its other one,
0 along equal changes of all outputs, is for changes that no residual has a part in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.errors import TableError
from securevfl.models.loss import Loss

FLOOR = 1e-6  # of the largest curvature: what flatter directions, as of collinear columns, count as


def bound(loss: Loss) -> float:
    """c of a loss that states it, which a job is checked for."""
    assert loss.curvature is not None, "a job is refused whose loss states no curvature"
    return loss.curvature


def of_rows(
    stretches: Iterable[Floats],
    gram: Callable[[Floats], Floats],
    loss: Loss,
    decay: Floats,
    *,
    who: str,
    constant: Floats | None = None,
) -> Floats:
    """P (d x d) of a party's rows, which come in stretches (each n x d); the rest as `preconditioner`.

    gram: X^T X of a stretch, with whatever columns the model adds. constant: weights v (d,) with X v = 1, if there are
    any: steps then leave the mean of X theta where it is.
    """
    total, rows = np.zeros((len(decay), len(decay))), 0
    for X in stretches:
        total += gram(X)
        rows += len(X)
    if constant is None:
        return preconditioner(total, rows, bound(loss), decay, who=who)
    # P = T (c X_c^T X_c / n + diag(decay))^-1 T^T for the columns about their means, X_c = X - 1 mu^T. Where the party
    # with labels has an intercept and the columns of another one add up to a constant, X v = 1, both would step along
    # it, and together twice as far as either says. With T = I - v mu^T, X T = X_c: steps of this P are those of the
    # columns about their means, and move X theta by what has the mean 0.
    mean = total @ constant / rows
    P = preconditioner(total - rows * np.outer(mean, mean), rows, bound(loss), decay, who=who)
    turned = P - np.outer(constant, mean @ P)
    return np.asarray(turned - np.outer(turned @ mean, constant))


def preconditioner(gram: Floats, rows: int, curvature: float, decay: Floats, *, who: str) -> Floats:
    """P = (c X^T X / n + diag(decay))^-1 (d x d), from X^T X (d x d) over n `rows`, c and the weights of L2 (d x 1).

    Directions that are flatter than FLOOR times the steepest are taken for that steep: along collinear columns the
    gradient is rounding alone, and more of it would be made a step. It is a ridge on the step, not on the objective.
    TableError, by the name of the party, where more weights than rows stand without L2.
    """
    if len(gram) > rows and not np.any(decay):
        raise TableError(
            f"{who}: at most {rows} columns were expected of batches of {rows} rows without l2, {len(gram)} came (an "
            'intercept counts as one); set l2 above 0, use larger batches (batch_size = "all") or drop columns'
        )
    bounded_by = curvature / rows * gram + np.diag(decay[:, 0])
    if decay.min() >= FLOOR * np.abs(bounded_by).sum(axis=1).max():  # no direction is that flat, so the inverse will do
        inverse = np.linalg.inv(bounded_by).astype(np.float64)
        return np.asarray((inverse + inverse.T) / 2)
    sizes, axes = np.linalg.eigh(bounded_by)
    steep = float(sizes[-1])
    bounded = np.maximum(sizes, FLOOR * steep if steep > 0 else 1.0)
    return (axes / bounded) @ axes.T
