"""`securevfl demo`: one model of two parties, trained in the open, under CKKS and under Paillier, side by side."""

from __future__ import annotations

import time

import numpy as np
from rich.console import Console

from securevfl.cli.show import costs_table, sheet, sheet_width, table
from securevfl.data import samples
from securevfl.data.party import Party
from securevfl.display.progress import progress
from securevfl.job import Job, Protocol
from securevfl.models.linear import Logistic
from securevfl.optim.fedbcd import FedBCD
from securevfl.privacy.consent import explain
from securevfl.protocols.base import ResidualProtocol
from securevfl.protocols.engines import Ckks, Engine, Paillier
from securevfl.runtime.clock import Network
from securevfl.training.run import Run
from securevfl.training.simulate import simulate

NETWORK = Network()
RESIDUALS: dict[str, Engine | str] = {
    "in the open": "open",
    "Paillier, 2048 bits": Paillier(bits=2048),
    "CKKS, 128-bit security": Ckks(),
}


def job_under(residual: Engine | str, epochs: int) -> Job:
    """The demo's job with this residual; all else is equal."""
    return Job(
        model=Logistic(l2=1e-3),
        optimizer=FedBCD(local_steps=5, lr=0.3),
        protocol=Protocol(residual=residual),
        batch_size=128,
        epochs=epochs,
        test_fraction=0.25,
        accepts=("columns",),
    )


def demo(out: Console, *, epochs: int = 10) -> dict[str, Run]:
    """Trains and prints; returns the runs by name."""
    parties = samples.breast_cancer(parties=2)
    out.print("Two organisations, one model (breast cancer table of scikit-learn, split in two)", style="bold")
    for party in parties:
        out.print(
            f"  {party.name:<5} {len(party)} rows x {len(party.columns)} columns{' and the label' * party.active}"
        )
    jobs = {name: job_under(residual, epochs) for name, residual in RESIDUALS.items()}
    _explain(out, jobs, parties)
    runs, seconds = {}, {}
    for name, job in jobs.items():
        started = time.perf_counter()
        with progress(f"training {name}") as on_round:
            runs[name] = simulate(job, parties, network=NETWORK, on_round=on_round)
        seconds[name] = time.perf_counter() - started
    _results(out, runs, seconds)
    return runs


def _explain(out: Console, jobs: dict[str, Job], parties: list[Party]) -> None:
    for name in ("in the open", "CKKS, 128-bit security"):
        out.print(f"\nWhat each party learns, {name}", style="bold")
        out.print(sheet(explain(jobs[name], parties), sheet_width(out)), soft_wrap=True)
    residual = jobs["Paillier, 2048 bits"].protocol.residual
    assert isinstance(residual, ResidualProtocol)
    out.print("\nWhat each party learns, Paillier, 2048 bits", style="bold")
    out.print(sheet(f"the same as under CKKS; encryption: {residual.strength}", sheet_width(out)), soft_wrap=True)


def _results(out: Console, runs: dict[str, Run], seconds: dict[str, float]) -> None:
    plain = runs["in the open"]
    rows = []
    for name, run in runs.items():
        gap = max(float(np.abs(part.theta - plain.parts[who].theta).max()) for who, part in run.parts.items())
        figures = f"{run.metrics['auc']:.4f}", f"{run.metrics['accuracy']:.4f}", f"{gap:.0e}" if gap else "0"
        rows.append((name, *figures, f"{seconds[name]:.1f}"))
    out.print(f"\nThe same model three times, metrics on the {plain.evaluated_on}", style="bold")
    grid = table(["residual", "AUC", "accuracy", "weights\ndiffer by", "seconds\nhere"], rows)
    for column in grid.columns[1:]:
        column.justify = "right"
    out.print(grid)
    out.print(
        f"\nWhat it costs on two computers, {NETWORK.mbps:g} Mbps and {NETWORK.rtt_ms:g} ms apart (virtual time)",
        style="bold",
    )
    out.print(costs_table([run.costs for run in runs.values()]))
    out.print("\nyour own tables:    securevfl train --help\nencryption alone:   securevfl bench he --help")
