"""The training of trees on shares, repeated in floating point with exact residuals, next to further shared columns.

The features of a party are those of the package. The steps are those of block descent with Nesterov's momentum: with K
blocks of weights theta_k,

    theta_k -= step / K * P_k X_k^T g / n        P_k = (X_k^T X_k / (4 n) + ridge * I)^-1

The products of two parties' components (pairs) are one more block, if there are any. Their matrix X^T X is not known to
either party, so P is the number 1 / (1 / 4 + r * ridge), which is right for uncorrelated columns of variance 1. The
package has r = 5.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.data.party import Party
from securevfl.families.table_preparation import prepare_parties
from securevfl.job import Job
from securevfl.models.inputs import FittingData, InputShape
from securevfl.models.pair_components import PAIR_RIDGE
from securevfl.models.trees import Trees

ITERATIONS = 30


class Steps(NamedTuple):
    """Step sizes in units of the safe step: `first` for a number of `iterations`, then `later`."""

    first: float
    iterations: int
    later: float


@dataclass(frozen=True)
class PreparedRows:
    """A set of n rows, as both parties prepare them.

    Attributes:
        columns: the prepared columns (n, d) of each party.
        inputs: the features (n, breadth) that each party computes from them.
        y: the labels (n, 1), -1 or 1.
    """

    columns: list[Floats]
    inputs: list[Floats]
    y: Floats


def prepared_rows(
    job: Job, local: Sequence[Party], parties: Sequence[Party], other: Sequence[NDArray[np.intp]]
) -> list[PreparedRows]:
    """Prepare the training rows, and further sets of rows without those that lack values.

    Args:
        job: a job of trees.
        local: the parties with the training rows alone.
        parties: the parties with all rows.
        other: row numbers of each further set.

    Returns:
        The training rows, then each further set.
    """
    model, prepared = job.model, prepare_parties(job, local)
    assert isinstance(model, Trees), "the job is of trees"
    largest = np.max(parties[0].y)
    sets = [PreparedRows([], [], np.where(np.asarray(local[0].y) == largest, 1.0, -1.0)[:, None])]
    for rows in other:
        y = np.where(np.asarray(parties[0].take(np.sort(rows)).y) == largest, 1.0, -1.0)[:, None]
        sets.append(PreparedRows([], [], y))
    for place, party in enumerate(prepared):
        assert party.preparation is not None, "it has been prepared"
        n, y = len(party), None if place else sets[0].y
        seen = FittingData(party.name, party.X, tuple(party.preparation.sources), y, None, os.urandom(32))
        shape = InputShape(place == 0, party.X.shape[1], 1, len(local), n)
        inputs = model.inputs(shape, None, partial(_same, seen))
        sets[0].columns.append(party.X)
        sets[0].inputs.append(inputs.trained(party.X, np.arange(n)))
        for part, rows in zip(sets[1:], other, strict=True):
            part.columns.append(party.preparation.apply(parties[place].take(np.sort(rows)).table))
            part.inputs.append(inputs(np.nan_to_num(part.columns[-1])))
    return [sets[0], *map(_complete, sets[1:])]


def _complete(rows: PreparedRows) -> PreparedRows:
    """Return the rows without those that have a missing value, which models reject."""
    full = np.all([np.isfinite(X).all(axis=1) for X in rows.columns], axis=0)
    return PreparedRows([X[full] for X in rows.columns], [X[full] for X in rows.inputs], rows.y[full])


def outputs_by_iteration(
    job: Job,
    sets: Sequence[PreparedRows],
    steps: Steps,
    products: Sequence[Floats] = (),
    *,
    pair_ridge: float = PAIR_RIDGE,
) -> list[tuple[Floats, ...]]:
    """Train on the first set of rows, and return the outputs of the others after every iteration.

    Args:
        job: a job of trees.
        sets: the training rows, then further sets.
        steps: the step sizes.
        products: the products (n, d) of the components of two parties in each set; empty for a model without pairs.
        pair_ridge: the ridge penalty of products is this number times their number, divided by that of training rows.

    Returns:
        For each iteration, the outputs (n, 1) of each further set.
    """
    model, y, n = job.model, sets[0].y, len(sets[0].y)
    assert isinstance(model, Trees), "the job is of trees"
    ridge = model.ridge_of(n)
    assert ridge is not None, "trees have one of their own"
    inverse = [np.linalg.inv(X.T @ X / (4 * n) + ridge * np.eye(X.shape[1])) for X in sets[0].inputs]
    blocks, *others = [rows.inputs for rows in sets]
    if products:
        blocks, *others = [[*inputs, X] for inputs, X in zip([blocks, *others], products, strict=True)]
        inverse.append(np.full((1, 1), 1 / (0.25 + pair_ridge * products[0].shape[1] / n)))
    points = [np.zeros((X.shape[1], 1)) for X in blocks]
    previous, path = [theta.copy() for theta in points], []
    for t in range(1, ITERATIONS + 1):
        step = steps.first if t <= steps.iterations else steps.later
        g = model.loss.residual(_sums(blocks, points), y)
        moves = [_times(P, X.T @ g) * step / (n * len(blocks)) for X, P in zip(blocks, inverse, strict=True)]
        after = [theta - move for theta, move in zip(points, moves, strict=True)]
        points = [a + (t - 1) / (t + 2) * (a - b) for a, b in zip(after, previous, strict=True)]
        previous = after
        path.append(tuple(_sums(rows, points) for rows in others))
    return path


def _times(P: Floats, gradient: Floats) -> Floats:
    return P * gradient if P.size == 1 else P @ gradient


def _sums(blocks: Sequence[Floats], weights: Sequence[Floats]) -> Floats:
    return np.asarray(sum(X @ theta for X, theta in zip(blocks, weights, strict=True)))


def _same(seen: FittingData) -> FittingData:
    return seen
