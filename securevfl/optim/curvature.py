"""Bounds on the curvature of the objective in one party's weights, which the party computes from its columns alone.

X_k (n, d) are the columns of party k, theta_k its weights and f the model's outputs. If the second derivative of the
loss by f is at most c (`Loss.curvature`), the Hessian of the objective by theta_k, with all other weights fixed, is at
most

    B_k = c * X_k^T X_k / n + l2 * I            (Boehning and Lindsay 1988; for several outputs Boehning 1992)

A step of P_k = B_k^-1 times the gradient therefore never increases the objective. P_k is called the preconditioner; a
party computes it alone. With several outputs the same P_k is used for each: c is then the largest eigenvalue of the
bound on the second derivatives by all outputs. The other eigenvalue is 0 and belongs to equal changes of all outputs,
to which no residual contributes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.errors import TableError
from securevfl.models.loss import Loss

# eigenvalues of the curvature below this share of the largest one, as collinear columns have, are raised to it
MIN_RELATIVE_CURVATURE = 1e-6


def curvature_bound(loss: Loss) -> float:
    """Return c, the curvature bound of a loss; jobs whose loss has none are refused."""
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
    """Return the preconditioner P (d, d) for a party's rows, which are passed in chunks.

    Args:
        chunks: consecutive rows of the party's columns, each chunk (m, d).
        gram: computes X^T X of a chunk, with the columns that the model adds.
        loss: the loss function that the training minimises (`securevfl.models.loss`).
        decay: the l2 penalty of each weight (d, 1).
        who: name of the party, which error messages state.
        constant: weights v (d,) with X v = 1 for every row, or None; if they exist, steps do not change the mean of X
            theta.

    Returns:
        The preconditioner.
    """
    total, rows = np.zeros((len(decay), len(decay))), 0
    for X in chunks:
        total += gram(X)
        rows += len(X)
    if constant is None:
        return preconditioner(total, rows, curvature_bound(loss), decay, who=who)
    return _centred_preconditioner(total, rows, curvature_bound(loss), decay, constant, who=who)


def _centred_preconditioner(
    total: Floats, rows: int, curvature: float, decay: Floats, constant: Floats, *, who: str
) -> Floats:
    """Return P for columns with X v = 1 for weights v (`constant`); steps of P leave the mean of X theta unchanged.

    With a usual P these steps could change the intercept as the steps of the active party do, and together they would
    move twice as far as intended. So P belongs to the centred columns X_c = X - 1 mu^T, with the column means mu:
    P = T (c * X_c^T X_c / n + diag(decay))^-1 T^T with T = I - v mu^T, because X T = X_c. `total` is X^T X.
    """
    mean = total @ constant / rows
    P = preconditioner(total - rows * np.outer(mean, mean), rows, curvature, decay, who=who)
    projected = P - np.outer(constant, mean @ P)
    return np.asarray(projected - np.outer(projected @ mean, constant))


def preconditioner(gram: Floats, rows: int, curvature: float, decay: Floats, *, who: str) -> Floats:
    """Return P = (c * X^T X / n + diag(decay))^-1 (d, d).

    Eigenvalues below MIN_RELATIVE_CURVATURE times the largest one are raised to that value. Along collinear columns the
    gradient consists of rounding errors, which must not become a large step. This changes the step, not the objective.

    Args:
        gram: X^T X (d, d).
        rows: n, number of rows.
        curvature: c, bound of the loss's second derivative.
        decay: the l2 penalty of each weight (d, 1).
        who: name of the party, which error messages state.

    Returns:
        The preconditioner.

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
    # if the l2 penalty alone makes every eigenvalue large enough, a plain inverse suffices
    if decay.min() >= MIN_RELATIVE_CURVATURE * np.abs(bound).sum(axis=1).max():
        inverse = np.linalg.inv(bound).astype(np.float64)
        return np.asarray((inverse + inverse.T) / 2)
    eigenvalues, eigenvectors = np.linalg.eigh(bound)
    steepest = float(eigenvalues[-1])
    clipped = np.maximum(eigenvalues, MIN_RELATIVE_CURVATURE * steepest if steepest > 0 else 1.0)
    return (eigenvectors / clipped) @ eigenvectors.T
