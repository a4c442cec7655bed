"""Schedules of the steps of trees, compared in floating point on tables that do not mix the parties' columns.

    python -m benchmarks tree-schedule --data DIR --seeds 5

Each table is split at random into training rows, held-out rows, whose loss chooses the model, and test rows, whose AUC
is printed. For every schedule the trees, the boosted score and the split are the same, so differences between schedules
are paired. A schedule is a step size for each iteration, and the iterations after which the loss is evaluated. The
training stops at the first evaluation that does not improve the loss, and returns the best evaluated model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tree_floats import Steps, outputs_by_iteration, prepared_rows
from benchmarks.trees import HELD_OUT, MOST_SCORED, parties_of
from securevfl.base.arrays import Floats
from securevfl.data.party import Party
from securevfl.errors import DivergenceError
from securevfl.job import Job
from securevfl.models.metrics import area_under_curve
from securevfl.models.trees import Trees

SCHEMA = "securevfl.bench.tree_schedule/1"
MOST_TRAINED = 30_000
"""Largest number of training rows of a table."""


@dataclass(frozen=True)
class Schedule:
    """Step sizes as multiples of the safe step, and the iterations after which the loss is evaluated."""

    name: str
    steps: Steps
    evaluations: tuple[int, ...]


SCHEDULES = (
    Schedule("2, every 10", Steps(2, 0, 2), (10, 20, 30)),
    Schedule("1 for 10, then 2, every 10", Steps(1, 10, 2), (10, 20, 30)),
    Schedule("1, every 10", Steps(1, 30, 1), (10, 20, 30)),
    Schedule("2, every 5", Steps(2, 0, 2), (5, 10, 15, 20, 25, 30)),
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
    sets = prepared_rows(job, [party.take(np.sort(parts[0])) for party in parties], parties, parts[1:])
    _, held_out, test = sets
    paths: dict[Steps, list[tuple[Floats, ...]]] = {}
    for schedule in SCHEDULES:
        steps = schedule.steps
        path = paths[steps] = paths.get(steps) or outputs_by_iteration(job, sets, steps)
        best, end = stopping_point(schedule.evaluations, [job.model.loss.value(f, held_out.y).mean() for f, _ in path])
        auc = area_under_curve(test.y[:, 0] > 0, path[best - 1][1][:, 0])
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
