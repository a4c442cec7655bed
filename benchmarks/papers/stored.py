"""FDML's server: the time and bytes of a batch by how it is hidden, and AUC with noise.

stored   processor milliseconds of one thread to hide, add and reveal a batch, and bytes of a payload; two workers
noise    AUC on held-out rows of breast cancer by epsilon; two workers that both know the labels
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import securevfl as vfl
from benchmarks.papers.study import DIVERGED, Rows, mean
from securevfl.base.roles import Roles
from securevfl.families.fdml.stored_sum import StoredServer, StoredSum, StoredWorker
from securevfl.protocols.party_context import PartyContext
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import VirtualClock
from securevfl.runtime.meter import Meter
from securevfl.runtime.party_threads import run_threads

WORKERS = ("a", "b")


@dataclass(frozen=True)
class StoredPlan:
    """Measurements of the server's time.

    Attributes:
        rows: numbers of rows of a batch.
        repetitions: number of repetitions, whose median is reported.
    """

    rows: tuple[int, ...] = (256, 4096)
    repetitions: int = 5


@dataclass(frozen=True)
class NoisePlan:
    """Trainings with noise of differential privacy.

    Attributes:
        epsilons: values of epsilon; 0 adds no noise.
        epochs: number of passes over the rows.
        splits: number of random splits.
        tau: the staleness.
        lr: the step size.
        delta: delta of differential privacy.
        clip: bound at which outputs are clipped.
    """

    epsilons: tuple[float, ...] = (0.0, 30.0, 8.0, 4.0, 2.0, 1.0)
    epochs: int = 4
    splits: int = 5
    tau: int = 4
    lr: float = 0.3
    delta: float = 1e-4
    clip: float = 2.0


def stored(data: Path | None, plan: StoredPlan, on_row: Callable[[str], None]) -> Rows:
    """Return a row for each kind and size."""
    kinds: dict[str, StoredSum] = {
        "open": vfl.StoredOpen(),
        "masks": vfl.StoredMasks(),
    }
    rows: Rows = []
    for name, kind in kinds.items():
        server, workers = _met(kind)
        for batch, n in enumerate(plan.rows):
            on_row(f"{name}, {n} rows")
            H, times = np.random.default_rng(n).normal(size=(n, 1)), []
            for version in range(plan.repetitions):
                marks = [time.process_time()]
                payloads = {"a": workers["a"].conceal(H, batch, version)}
                marks.append(time.process_time())
                payloads["b"] = workers["b"].conceal(H, batch, version)
                marks.append(time.process_time())
                total = server.add(payloads)
                marks.append(time.process_time())
                workers["a"].reveal(total, dict.fromkeys(WORKERS, version), batch, H.shape)
                marks.append(time.process_time())
                times.append(np.diff(marks))
            conceal, _, add, reveal = 1e3 * np.median(times, axis=0)
            size = len(payloads["a"]) if isinstance(payloads["a"], bytes) else 8 * n
            figures = {"conceal_ms": float(conceal), "add_ms": float(add), "reveal_ms": float(reveal)}
            rows.append({"stored": name, "rows": n, **figures, "bytes": size})
    return rows


def _met(kind: StoredSum) -> tuple[StoredServer, dict[str, StoredWorker]]:
    """Return all sides of one session, after the exchange of keys."""

    def play(channel: Channel) -> StoredServer | StoredWorker:
        party_context = PartyContext(
            channel, Roles.sum("server", WORKERS), Meter(channel.clock, channel.counters), subchannel="stored"
        )
        return kind.server(party_context, WORKERS) if channel.me == "server" else kind.worker(party_context, WORKERS)

    generated = run_threads(dict.fromkeys(("server", *WORKERS), play), lambda: VirtualClock(vfl.Network()), timeout=600)
    server = generated.pop("server")
    assert isinstance(server, StoredServer)
    return server, {name: worker for name, worker in generated.items() if isinstance(worker, StoredWorker)}


def noise(data: Path | None, plan: NoisePlan, on_row: Callable[[str], None]) -> Rows:
    """Return the mean AUC of the finished runs by epsilon, and how many diverge."""
    rows: Rows = []
    for epsilon in plan.epsilons:
        on_row(f"epsilon {epsilon:g}")
        blur = vfl.LocalNoise(epsilon=epsilon, delta=plan.delta, clip=plan.clip) if epsilon else None
        aucs = []
        for split in range(plan.splits):
            job = vfl.Job(
                model=vfl.Logistic(l2=1e-3),
                optimizer=vfl.FDML(lr=plan.lr, tau=plan.tau, shows_labels=True, stored=vfl.StoredMasks(noise=blur)),
                protocol=vfl.Protocol(),
                batch_size=64,
                epochs=plan.epochs,
                seed=split,
                split=split,
                test_fraction=0.25,
                accepts=["columns", "rank", "fresh_equations"],
            )
            try:
                run = vfl.simulate(job, [*vfl.datasets.breast_cancer(2), vfl.Helper("server", "server")])
            except DIVERGED:
                continue
            aucs.append(run.metrics["auc"])
        row = {"epsilon": epsilon or None, "sigma": None if blur is None else blur.sigma(plan.epochs)}
        rows.append(row | {"auc": mean(aucs), "ended": len(aucs), "splits": plan.splits})
    return rows
