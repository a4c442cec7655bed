"""Schedules of the steps of trees, compared in floating point on tables that do not mix the parties' columns.

    python -m benchmarks tree-schedule --data DIR --seeds 5

Each table is split at random into training rows, held-out rows, whose loss chooses the model, and test rows, whose AUC
is printed. For every schedule the trees, the boosted score and the split are the same, so differences between schedules
are paired. A schedule is a step size for each iteration, and the iterations after which the loss is evaluated. The
training stops at the first evaluation that does not improve the loss, and returns the best evaluated model.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.trees import HELD_OUT, MOST_SCORED, parties_of
from securevfl.base.arrays import Floats
from securevfl.data.party import Party
from securevfl.errors import DivergenceError
from securevfl.families.table_preparation import prepare_parties
from securevfl.job import Job
from securevfl.models.inputs import FittingData, InputShape
from securevfl.models.metrics import area_under_curve
from securevfl.models.trees import Trees

SCHEMA = "securevfl.bench.tree_schedule/1"
MOST_TRAINED = 30_000
"""Largest number of training rows of a table."""
ITERATIONS = 30


@dataclass(frozen=True)
class Schedule:
    """Step sizes as multiples of the safe step, and the iterations after which the loss is evaluated."""

    name: str
    first_step: float
    first_iterations: int
    later_step: float
    evaluations: tuple[int, ...]


SCHEDULES = (
    Schedule("2, every 10", 2, 0, 2, (10, 20, 30)),
    Schedule("1 for 10, then 2, every 10", 1, 10, 2, (10, 20, 30)),
    Schedule("1, every 10", 1, 30, 1, (10, 20, 30)),
    Schedule("2, every 5", 2, 0, 2, (5, 10, 15, 20, 25, 30)),
)


def run(data: Path, names: Sequence[str], seeds: int, on_row: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return a row for each table, seed and schedule."""
    rows: list[dict[str, Any]] = []
    for name in names:
        parties = parties_of(data, name)
        for seed in range(seeds):
            on_row(f"{name}, split {seed + 1} of {seeds}")
            rows += [{"table": name, "seed": seed} | row for row in _table(parties, seed)]
    return rows


def means(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Return the mean of iterations and of the AUC for each table and schedule, as cells of a table."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["table"], row["schedule"]), []).append(row)
    return [
        [*key, f"{np.mean([r['iterations'] for r in group]):.1f}", f"{np.mean([r['auc'] for r in group]):.4f}"]
        for key, group in groups.items()
    ]


def _table(parties: Sequence[Party], seed: int) -> Iterator[dict[str, Any]]:
    order = np.random.default_rng([seed, 5]).permutation(len(parties[0]))
    trained = min(len(order) * 3 // 4, MOST_TRAINED)
    held = int(trained * HELD_OUT)
    parts = order[held:trained], order[:held], order[trained : trained + MOST_SCORED]
    job = Job.from_dict({"model": Trees(), "test_fraction": HELD_OUT})
    features, y = _features(job, [party.take(np.sort(parts[0])) for party in parties], parties, parts[1:])
    (train, held_out, test), (y_train, y_held, y_test) = features, y
    paths: dict[tuple[float, int, float], list[tuple[Floats, ...]]] = {}
    for schedule in SCHEDULES:
        steps = schedule.first_step, schedule.first_iterations, schedule.later_step
        path = paths[steps] = paths.get(steps) or _path(job, train, y_train, (held_out, test), steps)
        best, end = stopping_point(schedule.evaluations, [job.model.loss.value(f, y_held).mean() for f, _ in path])
        auc = area_under_curve(y_test[:, 0] > 0, path[best - 1][1][:, 0])
        yield {"schedule": schedule.name, "iterations": end, "best": best, "auc": auc}


def stopping_point(evaluations: Sequence[int], losses: Sequence[float]) -> tuple[int, int]:
    """Return the iteration of the best evaluated model, and the iteration at which the training stops.

    Args:
        evaluations: the iterations after which the loss is evaluated.
        losses: the held-out loss after every iteration.

    Raises:
        DivergenceError: the loss at the first evaluation is not finite.
    """
    best = evaluations[0]
    if not np.isfinite(losses[best - 1]):
        raise DivergenceError("the loss is not finite at the first evaluation", "take a smaller step")
    for iteration in evaluations[1:]:
        if not losses[iteration - 1] < losses[best - 1]:
            return best, iteration
        best = iteration
    return best, best


def _features(
    job: Job, local: Sequence[Party], parties: Sequence[Party], other: Sequence[Any]
) -> tuple[list[list[Floats]], list[Floats]]:
    """Return the features of every party in training rows and in each of the other sets of rows, and the labels."""
    model, prepared = job.model, prepare_parties(job, local)
    assert isinstance(model, Trees), "the job is of trees"
    largest = np.max(parties[0].y)
    labels = [np.where(np.asarray(local[0].y) == largest, 1.0, -1.0)[:, None]]
    sets: list[list[Floats]] = [[], *([] for _ in other)]
    full = [np.ones(len(rows), bool) for rows in other]
    for place, party in enumerate(prepared):
        assert party.preparation is not None, "it has been prepared"
        n, y = len(party), None if place else labels[0]
        seen = FittingData(party.name, party.X, tuple(party.preparation.sources), y, None, os.urandom(32))
        shape = InputShape(place == 0, party.X.shape[1], 1, len(local), n)
        inputs = model.inputs(shape, None, partial(_same, seen))
        sets[0].append(inputs.trained(party.X, np.arange(n)))
        for number, rows in enumerate(other):
            X = party.preparation.apply(parties[place].take(np.sort(rows)).table)
            full[number] &= np.isfinite(X).all(axis=1)
            sets[number + 1].append(inputs(np.nan_to_num(X)))
    for number, rows in enumerate(other):
        y_new = np.where(np.asarray(parties[0].take(np.sort(rows)).y) == largest, 1.0, -1.0)[:, None]
        labels.append(y_new[full[number]])
        sets[number + 1] = [X[full[number]] for X in sets[number + 1]]
    return sets, labels


def _same(seen: FittingData) -> FittingData:
    return seen


def _path(
    job: Job, blocks: Sequence[Floats], y: Floats, others: Sequence[Sequence[Floats]], steps: tuple[float, int, float]
) -> list[tuple[Floats, ...]]:
    """Return the outputs of the other sets of rows after every iteration of block descent with Nesterov's momentum."""
    model, n = job.model, len(y)
    assert isinstance(model, Trees), "the job is of trees"
    ridge = model.ridge_of(n)
    assert ridge is not None, "trees have one of their own"
    inverse = [np.linalg.inv(X.T @ X / (4 * n) + ridge * np.eye(X.shape[1])) for X in blocks]
    first, count, later = steps
    points = [np.zeros((X.shape[1], 1)) for X in blocks]
    previous, path = [theta.copy() for theta in points], []
    for t in range(1, ITERATIONS + 1):
        step = first if t <= count else later
        g = model.loss.residual(_sums(blocks, points), y)
        after = [a - step * P @ (X.T @ g) / (n * len(blocks)) for X, P, a in zip(blocks, inverse, points, strict=True)]
        points = [a + (t - 1) / (t + 2) * (a - b) for a, b in zip(after, previous, strict=True)]
        previous = after
        path.append(tuple(_sums(rows, points) for rows in others))
    return path


def _sums(blocks: Sequence[Floats], weights: Sequence[Floats]) -> Floats:
    return np.asarray(sum(X @ theta for X, theta in zip(blocks, weights, strict=True)))
