"""CELU-VFL, Figure 5d: quantiles of the cosines by which rows are weighed in local steps on stored exchanges.

A row's cosine is that of the angle between its vector at the exchange and the same vector at a local step: its outputs
at the party without labels, its derivatives at the party with labels. A row has the weight 0 beyond the angle xi.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np

from benchmarks.papers.celu_setting import XI, Plan, R, W, job_of, with_networks
from benchmarks.papers.clicks import clicks
from benchmarks.papers.study import Rows, Runs, mean
from securevfl.base.arrays import Floats
from securevfl.models.torch_model import torch
from securevfl.optim import celu
from securevfl.optim.adagrad import AdaGrad
from securevfl.optim.instance_weights import cosines
from securevfl.training.simulate import simulate

HALF_TURN = 180.0
"""An angle of 180 degrees. No vectors have a larger angle, so no cosine is replaced by 0."""
QUANTILES = (0.05, 0.1, 0.25, 0.5, 0.75)


@dataclass(frozen=True)
class CosinesPlan:
    """A training whose cosines are recorded.

    Attributes:
        rows: number of generated rows.
        batch: number of rows of a batch.
        width: number of outputs Z for each row.
        step: the step size.
        stages: number of stages into which the training is divided for the report.
        starts: number of random starts.
    """

    rows: int = 64_000
    batch: int = 64
    width: int = 16
    step: float = 0.01
    stages: int = 5
    starts: int = 5


def run(data: Path | None, plan: CosinesPlan, runs: Runs) -> Rows:
    """Return a row for each vector (outputs, derivatives) and stage: means over all starts."""
    torch().set_num_threads(1)
    parties = with_networks(clicks(plan.rows).parties(), plan.width)
    setting = Plan(rows=plan.rows, test=0.0, batch=plan.batch, width=plan.width, every=0)
    optimizer = celu.CeluVFL(lr=plan.step, rule=AdaGrad(), R=R, W=W, xi=XI)
    vectors = {party.name: "derivatives" if party.active else "outputs" for party in parties}
    results: dict[tuple[str, int], list[list[float]]] = defaultdict(list)
    for start in range(plan.starts):
        runs(f"start {start + 1} of {plan.starts}")
        with recorded() as steps:
            simulate(job_of(setting, optimizer, 0, start), parties)
        for party, values in steps.items():
            for stage, block in enumerate(np.array_split(np.array(values, dtype=object), plan.stages)):
                seen = np.concatenate([np.asarray(step, float) for step in block])
                zero = float((seen < np.cos(np.radians(XI))).mean())
                results[vectors[party], stage].append([*map(float, np.quantile(seen, QUANTILES)), zero])
    names = [*(f"q{100 * quantile:g}" for quantile in QUANTILES), "beyond_xi"]
    return [
        {"vector": vector, "stage": stage, "stages": plan.stages}
        | {name: mean(column) for name, column in zip(names, zip(*figures, strict=True), strict=True)}
        for (vector, stage), figures in sorted(results.items())
    ]


@contextmanager
def recorded() -> Iterator[dict[str, list[Floats]]]:
    """Record the cosines (n,) of every local step by party; a party of a simulation runs in a thread of its name."""
    steps: dict[str, list[Floats]] = defaultdict(list)

    def recording(then: Floats, now: Floats, xi: float) -> Floats:
        steps[threading.current_thread().name].append(cosines(then, now, HALF_TURN))
        return cosines(then, now, xi)

    with mock.patch.object(celu, "cosines", recording):
        yield steps
