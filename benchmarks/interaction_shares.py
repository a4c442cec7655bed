"""The AUC of a model with pairs that is trained on secret shares, compared with that of the same steps in floats.

The model is a logistic regression with products of two parties' components, because it has no random features: both
trainings have the same prepared and scaled columns and the same step sizes. They differ by the rounding of shares and
by the lookup table of the residual.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.interaction_tables import TABLES
from securevfl.base.arrays import Floats
from securevfl.families.shares.shares_plan import make_plan
from securevfl.job import Job
from securevfl.models.linear import Logistic
from securevfl.models.metrics import area_under_curve
from securevfl.models.pair_components import COMPONENT_STEP, PairComponents, pair_ridge
from securevfl.optim.block_descent import BlockDescent
from securevfl.protocols.protocol_options import Protocol
from securevfl.protocols.shares.shares_options import Shares
from securevfl.protocols.shares.update_rules import FixedCoefficients
from securevfl.training.simulate import simulate


def shares_row(name: str, seed: int, *, rows: int | None = None, components: int = 16) -> dict[str, Any]:
    """Train a table on shares and in floats.

    Args:
        name: name of a generated table.
        seed: seed of the table.
        rows: number of rows; None for its usual number.
        components: number of components of each party.

    Returns:
        The AUC on the held-out rows of both models.
    """
    parties = TABLES[name].parties(rows, seed)
    job = Job(
        model=Logistic(pairs=components),
        optimizer=BlockDescent(),
        protocol=Protocol(shares=Shares()),
        batch_size="all",
        epochs=10,
        evaluate_every=0,
        test_fraction=0.25,
    )
    run = simulate(job, parties, workers=1)
    schedule, columns = run.job.schedule(parties[0].register), [np.asarray(party.X) for party in parties]
    scaled = [part.scaling(part.table(X)) for part, X in zip(run.parts.values(), columns, strict=True)]
    positive = np.asarray(parties[0].y) > 0
    exact = outputs_in_floats(run.job, scaled, np.where(positive, 1.0, -1.0), schedule.train)
    test = schedule.test
    trained = run.decision({party.name: X[test] for party, X in zip(parties, columns, strict=True)})[:, 0]
    return {
        "what": "shares",
        "table": name,
        "seed": seed,
        "rows": len(positive),
        "shares": area_under_curve(positive[test], trained),
        "floats": area_under_curve(positive[test], exact[test]),
    }


def outputs_in_floats(job: Job, columns: Sequence[Floats], y: Floats, train: NDArray[np.intp]) -> Floats:
    """Train a logistic regression with pairs in floating point, and return its outputs (n,) for all rows.

    Args:
        job: the settled job, without evaluations.
        columns: the prepared and scaled columns (n, d) of two parties; the first one has the labels.
        y: the labels (n,), -1 or 1.
        train: the positions of the training rows.
    """
    plan = make_plan(job, rows=len(train), batches=1, parties=2)  # type: ignore[arg-type]
    assert isinstance(plan.rule, FixedCoefficients), "a job on all rows has fixed coefficients"
    assert isinstance(job.optimizer, BlockDescent), "the job descends by blocks"
    bank = np.column_stack([columns[0], np.ones(len(y))])
    fitted = [PairComponents.fit(X[train], job.model.pair_rank) for X in columns]
    local, other = (item.transform(X) * COMPONENT_STEP for item, X in zip(fitted, columns, strict=True))
    products = np.asarray(local[:, :, None] * other[:, None, :]).reshape(len(y), -1)
    blocks = [bank, columns[1], products]
    steps = [_inverse(X[train], job.optimizer.ridge) for X in blocks[:2]]
    steps.append(np.eye(products.shape[1]) / (0.25 + pair_ridge(len(train), products.shape[1])))
    start = np.zeros(bank.shape[1])
    start[-1] = np.log((y[train] > 0).sum() / (y[train] < 0).sum())
    moves: list[list[Floats]] = []

    def outputs(coefficients: Sequence[float]) -> Floats:
        f = bank @ start
        for number, X in enumerate(blocks):
            for coefficient, move in zip(coefficients, moves, strict=True):
                f = f - coefficient * (X @ move[number])
        return np.asarray(f)

    for iteration in range(job.epochs):
        f = outputs(plan.rule.row(iteration))[train]
        g = -y[train] / (1 + np.exp(y[train] * f))
        moves.append([plan.rate / len(train) * P @ (X[train].T @ g) for X, P in zip(blocks, steps, strict=True)])
    return outputs(plan.rule.coefficients(job.epochs, result=True))


def _inverse(X: Floats, ridge: float) -> Floats:
    return np.asarray(np.linalg.inv(X.T @ X / len(X) / 4 + ridge * np.eye(X.shape[1])))
