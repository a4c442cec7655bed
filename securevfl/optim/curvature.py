"""Bounds on the curvature of the objective in one party's weights, which the party computes from its columns alone.

If the second derivative of the loss by f is at most c (`Loss.curvature`), the Hessian of the objective by one party's
weights theta_k, with all other weights fixed, is at most

    B_k = c X_k^T X_k / n + l2 I            (Boehning and Lindsay 1988; for several outputs Boehning 1992)

A step of P_k = B_k^-1 times the gradient therefore never increases the objective. No other party is needed to compute
P_k. With several outputs the same P_k is used for each: c is then the largest eigenvalue of the bound over the outputs.
Its other eigenvalue is 0, for equal changes of all outputs; no residual contributes to such changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.errors import TableError
from securevfl.models.loss import Loss

MIN_RELATIVE_CURVATURE = (
    1e-6  # flatter directions, such as those of collinear columns, count as this share of the largest
)


def curvature_bound(loss: Loss) -> float:
    """Return c of a loss; a job is only accepted if its loss has a bound."""
    assert loss.curvature is not None, "jobs whose loss has no curvature bound are rejected"
    return loss.curvature


def preconditioner_of_rows(
    chunks: Iterable[Floats],
    gram: Callable[[Floats], Floats],
    loss: Loss,
    decay: Floats,
    *,
    who: str,
    constant: Floats | None = None,
) -> Floats:
    """Return the preconditioner P (d x d) of a party's rows, which are passed in chunks.

    Args:
        chunks: chunks of rows (each n x d).
        gram: computes X^T X of a chunk, with the columns that the model adds.
        loss: the loss.
        decay: weights of L2 (d x 1).
        who: name of the party, for errors.
        constant: weights v (d,) with X v = 1, if they exist; steps then do not change the mean of X theta.

    Returns:
        P.
    """
    total, rows = np.zeros((len(decay), len(decay))), 0
    for X in chunks:
        total += gram(X)
        rows += len(X)
    if constant is None:
        return preconditioner(total, rows, curvature_bound(loss), decay, who=who)
    # P = T (c X_c^T X_c / n + diag(decay))^-1 T^T for centred columns X_c = X - 1 mu^T. If the active party has an
    # intercept and the columns of another party sum to a constant, X v = 1, both would step along this direction, and
    # together twice as far as intended. With T = I - v mu^T we have X T = X_c, so steps of this P are those of centred
    # columns and change X theta by a vector of mean 0.
    mean = total @ constant / rows
    P = preconditioner(total - rows * np.outer(mean, mean), rows, curvature_bound(loss), decay, who=who)
    projected = P - np.outer(constant, mean @ P)
    return np.asarray(projected - np.outer(projected @ mean, constant))


def preconditioner(gram: Floats, rows: int, curvature: float, decay: Floats, *, who: str) -> Floats:
    """Return P = (c X^T X / n + diag(decay))^-1 (d x d).

    Directions that are flatter than MIN_RELATIVE_CURVATURE times the steepest direction count as that steep. Along
    collinear columns the gradient consists of rounding errors, which must not become a large step. This is a ridge on
    the step, not on the objective.

    Args:
        gram: X^T X (d x d).
        rows: n.
        curvature: c.
        decay: weights of L2 (d x 1).
        who: name of the party, for errors.

    Returns:
        P.

    Raises:
        TableError: if there are more weights than rows, and no L2.
    """
    if len(gram) > rows and not np.any(decay):
        raise TableError(
            f"{who}: {len(gram)} columns (an intercept counts as one) are too many for batches of {rows} rows without "
            "l2",
            'set l2 above 0, use larger batches (batch_size = "all") or drop columns',
            code="SVFL-TABLE-TOO-FEW-ROWS",
            party=who,
        )
    bound = curvature / rows * gram + np.diag(decay[:, 0])
    if (
        decay.min() >= MIN_RELATIVE_CURVATURE * np.abs(bound).sum(axis=1).max()
    ):  # no direction is flatter, so the inverse is sufficient
        inverse = np.linalg.inv(bound).astype(np.float64)
        return np.asarray((inverse + inverse.T) / 2)
    eigenvalues, eigenvectors = np.linalg.eigh(bound)
    steepest = float(eigenvalues[-1])
    clipped = np.maximum(eigenvalues, MIN_RELATIVE_CURVATURE * steepest if steepest > 0 else 1.0)
    return (eigenvectors / clipped) @ eigenvectors.T
