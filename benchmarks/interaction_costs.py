"""The costs that pairs add: processor time and traffic of a training, and of the score of a new row.

Both are differences between two runs of a logistic regression, one with products of the components of two parties and
one without. Processor seconds are those of this process, which runs both parties, and depend on other work of the
machine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.data.party import Party
from securevfl.job import Job
from securevfl.models.linear import Logistic
from securevfl.optim.block_descent import BlockDescent
from securevfl.protocols.party_context import LocalResources, PartyContext
from securevfl.protocols.protocol_options import Protocol
from securevfl.protocols.shares.shares_options import Shares
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import WallClock
from securevfl.runtime.costs import Stage
from securevfl.runtime.meter import Meter
from securevfl.runtime.party_threads import run_threads
from securevfl.training.run import Run
from securevfl.training.simulate import simulate

COLUMNS = 6  # of a party, enough for 16 components


def cost_rows(rows: int, scored: int, components: int = 16, iterations: int = 10) -> list[dict[str, Any]]:
    """Measure a training and scores, and return what pairs add to each.

    Args:
        rows: number of training rows.
        scored: number of new rows.
        components: number of components of each party.
        iterations: number of iterations of the training.

    Returns:
        A row for the training, with seconds and MB, and a row for a score, with milliseconds and kB.
    """
    new = [party.X for party in _parties(scored, seed=1)]
    training, scores = [], []
    for pairs in (0, components):
        job = Job(
            model=Logistic(pairs=pairs),
            optimizer=BlockDescent(),
            protocol=Protocol(shares=Shares()),
            batch_size="all",
            epochs=iterations,
            evaluate_every=0,
            test_fraction=0.0,
        )
        started = time.process_time()
        run = simulate(job, _parties(rows, seed=0), workers=1)
        training.append((time.process_time() - started, run.costs.bytes / 1e6))
        few, many = (_scored(run, [X[:count] for X in new]) for count in (scored // 4, scored))
        per_row = scored - scored // 4  # the start of a session has the same costs for any number of rows
        scores.append(((many[0] - few[0]) / per_row * 1e3, (many[1] - few[1]) / per_row / 1e3))
    size = {"products": min(components, 3 * COLUMNS) ** 2}
    added = [[with_pairs - without for without, with_pairs in zip(*item, strict=True)] for item in (training, scores)]
    return [
        {"what": "training", "rows": rows, "iterations": iterations, "cpu_s": added[0][0], "mb": added[0][1]} | size,
        {"what": "score", "rows": scored, "cpu_ms": added[1][0], "kb": added[1][1]} | size,
    ]


def _parties(rows: int, seed: int) -> list[Party]:
    draw = np.random.default_rng([seed, rows])
    sides = [draw.normal(size=(rows, COLUMNS)) for _ in range(2)]
    f = 2 * np.sign(sides[0][:, 0] * sides[1][:, 0]) + sides[0][:, 1]
    y = (f + draw.logistic(size=rows) > 0).astype(int)
    return [Party("bank", sides[0], y, aligned=True), Party("shop", sides[1], aligned=True)]


def _scored(run: Run, tables: Sequence[Floats]) -> tuple[float, int]:
    """Score new rows, and return processor seconds and the bytes that both parties send."""
    sent: list[int] = []

    def score(name: str, X: Floats, channel: Channel) -> None:
        part = run.parts[name]
        meter, resources = Meter(channel.clock, channel.counters), LocalResources(simulated=True)
        context = PartyContext(channel, run.roles, meter, outputs=part.outputs, resources=resources, model=part.model)
        run.job.family.participant(run.job, context, X.shape[1], part.state).model_outputs(X)
        sent.append(sum(channel.counters.bytes_sent(stage) for stage in Stage))

    prepared = {name: run.parts[name].rows(X) for name, X in zip(run.parts, tables, strict=True)}
    started = time.process_time()
    run_threads({name: partial(score, name, X) for name, X in prepared.items()}, WallClock)
    return time.process_time() - started, sum(sent)
