"""The reported costs of a run cover it from start to end, in parts that add up, for every family of training."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.families import FAMILIES
from securevfl.runtime.clock import VirtualClock, WallClock
from securevfl.runtime.network import Network
from securevfl.runtime.party_threads import run_threads
from securevfl.training import simulate as simulation
from securevfl.training.run import Run
from securevfl.training.session import take_part

JOBS: dict[str, vfl.Job] = {
    "shares": vfl.Job(model=vfl.Logistic(), epochs=3),
    "rounds": vfl.Job(
        model=vfl.Logistic(),
        optimizer=vfl.FedBCD(lr=0.3),
        protocol=vfl.Protocol(residual="ckks"),
        batch_size=128,
        epochs=1,
        evaluate_every=1,
        test_fraction=0.25,
        accepts=["columns"],
    ),
    "phases": vfl.Job(
        model=vfl.Kernel(gamma=0.1), optimizer=vfl.FDSKL(), protocol=vfl.Protocol(sum="direct"), batch_size=64, epochs=1
    ),
    "transfer": vfl.Job(
        model=vfl.Transfer(units=3),
        optimizer=vfl.FedBCD(lr=1.0),
        protocol=vfl.Protocol(residual="open"),
        batch_size="all",
        epochs=2,
        accepts=["rank", "columns", "fresh_equations"],
    ),
    "fdml": vfl.Job(
        model=vfl.Logistic(),
        optimizer=vfl.FDML(lr=0.3, shows_labels=True, stored="open"),
        protocol=vfl.Protocol(),
        batch_size=128,
        epochs=1,
        test_fraction=0.25,
        accepts=["columns", "rank"],
    ),
}


def parties_with_server(name: str) -> list[vfl.Party]:
    """Two parties of 200 rows, with FDML's server."""
    tables = [party.take(np.arange(200)) for party in vfl.datasets.breast_cancer()]
    return tables + [vfl.Helper("server", "server")] * (name == "fdml")


def test_every_family_is_here() -> None:
    assert set(JOBS) == set(FAMILIES)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> list[VirtualClock]:
    """All clocks of simulations."""
    virtual_clocks: list[VirtualClock] = []

    def noted(*args: Any, **keys: Any) -> VirtualClock:
        virtual_clocks.append(VirtualClock(*args, **keys))
        return virtual_clocks[-1]

    monkeypatch.setattr(simulation, "VirtualClock", noted)
    return virtual_clocks


@pytest.mark.parametrize("name", JOBS)
def test_the_total_is_the_time_of_the_last_clock(name: str, clocks: list[VirtualClock]) -> None:
    """A round trip is ten seconds, so that nothing else counts: each that the run waits for must be in the total."""
    run = vfl.simulate(JOBS[name], parties_with_server(name), network=Network(mbps=1e6, rtt_ms=10_000))
    costs, ends = run.costs, [clock._here.branch.now for clock in clocks]  # of this thread: those of the trunk
    assert costs.total == pytest.approx(max(ends), rel=1e-3)
    assert sum(costs.parts.values()) == pytest.approx(costs.total, rel=1e-9)
    row = costs.row()
    parts = [row[key] for key in ("encryption_s", "local_s", "communication_s", "ahead_s", "evaluation_s")]
    assert sum(parts) == pytest.approx(row["total_s"], rel=1e-9)
    assert run.history[-1]["seconds"] <= costs.total


@pytest.mark.parametrize("name", JOBS)
def test_a_measured_run_is_told_by_the_clock_in_the_same_words(name: str) -> None:
    tables, job = parties_with_server(name), JOBS[name]
    job = vfl.Job.from_dict(job.to_dict() | {"epochs": job.epochs or 1})
    names = [party.name for party in tables]
    roles = {
        party.name: (lambda channel, party=party: take_part(job, party, channel, parties=names)) for party in tables
    }
    started = time.perf_counter()
    parts = run_threads(roles, WallClock)
    passed = time.perf_counter() - started
    costs = Run(job, parts).costs
    assert 0.8 * passed - 0.2 <= costs.total <= passed
    assert sum(costs.parts.values()) == pytest.approx(costs.total, rel=1e-9)


def test_runs_of_one_job_have_one_total_whatever_lies_beside_what() -> None:
    """Preprocessing and iterations run in parallel, and either may take longer; seconds of a link count alone."""
    job, tables = JOBS["shares"].model_copy(update={"epochs": 20}), parties_with_server("shares")
    network = Network(mbps=1.0, rtt_ms=400)
    totals = [vfl.simulate(job, tables, network=network).costs.total for _ in range(3)]
    assert max(totals) <= 1.05 * min(totals)
