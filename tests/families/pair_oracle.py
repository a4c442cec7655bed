"""A training with pairs in plain floats: slow and obviously right, to compare with trainings on shares."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.families.shares.shares_plan import make_plan, pair_ridge
from securevfl.job import Job
from securevfl.models.pair_components import COMPONENT_STEP, PairComponents
from securevfl.protocols.shares.update_rules import FixedCoefficients


def standardised(X: Floats, train: np.ndarray) -> Floats:
    """Return columns with a mean of 0 and a deviation of 1 over the training rows, clipped at 8."""
    return np.clip((X - X[train].mean(axis=0)) / X[train].std(axis=0), -8, 8)


def products_of(A: Floats, B: Floats, train: np.ndarray, rank: int) -> Floats:
    """Return the products (n, r_A r_B) of the components of two parties' columns, fitted to the training rows."""
    a, b = (PairComponents.fit(X[train], rank).transform(X) * COMPONENT_STEP for X in (A, B))
    return (b[:, :, None] * a[:, None, :]).reshape(len(a), -1)


def pair_scores(
    job: Job, tables: Sequence[Floats], y: Floats, train: np.ndarray, *, rollbacks: Sequence[tuple[int, int]] = ()
) -> Floats:
    """Return the outputs (n,) of a logistic model with pairs after all iterations on all training rows.

    Args:
        job: a settled job with the model `Logistic(pairs=..)`.
        tables: the columns of two parties; the first one has the labels.
        y: the labels (n,), -1 or 1.
        train: the positions of the training rows.
        rollbacks: the rollbacks of the training.

    Returns:
        The outputs.
    """
    n = len(train)
    plan = make_plan(job, rows=n, batches=1, parties=2, rollbacks=rollbacks)  # type: ignore[arg-type]
    rule = plan.rule
    assert isinstance(rule, FixedCoefficients)
    A, B = (standardised(X, train) for X in tables)
    A = np.column_stack([A, np.ones(len(A))])
    blocks = [A, B, products_of(*tables, train, job.model.pair_rank)]
    ridge = job.optimizer.ridge  # type: ignore[attr-defined]
    steps = [np.linalg.inv(X[train].T @ X[train] / n / 4 + ridge * np.eye(X.shape[1])) for X in (A, B)]
    steps.append(np.eye(blocks[2].shape[1]) / (0.25 + pair_ridge(n, blocks[2].shape[1])))
    start = np.log((y[train] > 0).mean() / (y[train] < 0).mean())
    changes: list[list[Floats]] = []

    def weights(row: Sequence[float], pair_row: Sequence[float]) -> list[Floats]:
        total = [
            -sum((c * u[k] for c, u in zip((row, row, pair_row)[k], changes, strict=True)), np.zeros(X.shape[1]))
            for k, X in enumerate(blocks)
        ]
        total[0][-1] += start
        return total

    def outputs(theta: Sequence[Floats], rows: np.ndarray | slice) -> Floats:
        return np.sum([X[rows] @ w for X, w in zip(blocks, theta, strict=True)], axis=0)

    for iteration in range(job.epochs):
        f = outputs(weights(rule.row(iteration), rule.coefficients(iteration)), train)
        g = -y[train] / (1 + np.exp(y[train] * f))
        changes.append([plan.rate / n * P @ (X[train].T @ g) for X, P in zip(blocks, steps, strict=True)])
    last = (rule.result_row or rule.row)(job.epochs)
    return outputs(weights(last, rule.coefficients(job.epochs, result=True)), slice(None))


def shared_exclusive_or(rows: int, seed: int = 0, columns: int = 3) -> tuple[list[Floats], np.ndarray]:
    """Return the columns of two parties, and labels that depend on the sign of a product of their first columns."""
    rng = np.random.default_rng(seed)
    A, B = (rng.normal(size=(rows, columns)) for _ in range(2))
    f = 2.5 * np.sign(A[:, 0] * B[:, 0]) + 0.5 * A[:, 1] + 0.5 * B[:, 1]
    return [A, B], (f + rng.logistic(size=rows) > 0).astype(int)
