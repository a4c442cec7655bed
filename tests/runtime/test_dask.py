"""Expensive work on a Dask cluster: a real scheduler and workers in separate processes, over TCP on loopback."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.protocols.shares import product_work
from securevfl.runtime import executor as offload
from securevfl.runtime.executor import TimedExecutor
from securevfl.training.run import Run

pytestmark = pytest.mark.exact_outputs

distributed = pytest.importorskip("distributed")

SECRET = 987654321987654321
DASK = shutil.which("dask", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


class Cluster:
    """A scheduler, workers and a client."""

    def __init__(self, folder: Path, *, nanny: bool, workers: int = 2) -> None:
        self.logs = folder
        self._started: list[subprocess.Popen[bytes]] = []
        where = folder / "scheduler.json"
        self.start("scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(where))
        options = ["--nthreads", "1", "--host", "127.0.0.1", "--local-directory", str(folder)]
        # one process watches all workers; without it each worker is started here
        watched = [["--nanny", "--nworkers", str(workers)]] if nanny else [["--no-nanny"]] * workers
        for more in watched:
            self.start("worker", "--scheduler-file", str(where), *options, *more)
        deadline = time.monotonic() + 120
        while not where.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.client: Any = distributed.Client(scheduler_file=str(where))
        self.client.wait_for_workers(workers, timeout=120)

    def start(self, *command: str) -> None:
        assert DASK is not None
        with (self.logs / f"{len(self._started)}.log").open("wb") as log:
            self._started.append(subprocess.Popen([DASK, *command, "--no-dashboard"], stdout=log, stderr=log))

    @property
    def executor(self) -> Executor:
        executor: Executor = self.client.get_executor()
        return executor

    def workers(self) -> list[int]:
        return list(self.client.run(os.getpid).values())

    def said(self) -> str:
        return "".join(path.read_text(errors="replace") for path in self.logs.glob("*.log"))

    def close(self) -> None:
        self.client.close()
        for process in reversed(self._started):
            process.terminate()
        for process in self._started:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if DASK is None:
        pytest.skip("needs the dask command")
    cluster = Cluster(tmp_path_factory.mktemp("dask"), nanny=True)
    yield cluster
    cluster.close()


def train(executor: Executor | None, on_round: Callable[[int, int], None] | None = None) -> Run:
    rows = np.arange(64)
    job = vfl.Job(
        model=vfl.Logistic(),
        optimizer=vfl.FedBCD(lr=0.1, local_steps=2),
        protocol=vfl.Protocol(residual=vfl.Paillier(bits=2048)),
        batch_size=22,
        epochs=1,
    )
    parties = [party.take(rows) for party in vfl.datasets.breast_cancer()]
    return vfl.simulate(job, parties, executor=executor, workers=2, on_round=on_round)


def same(one: Run, other: Run) -> None:
    for name, part in one.parts.items():
        np.testing.assert_array_equal(part.theta, other.parts[name].theta)


@pytest.fixture(scope="module")
def alone() -> Run:
    return train(None)


def slow(x: int) -> bytes:
    return hashlib.pbkdf2_hmac("sha256", b"", bytes([x]), 100_000)


def kill(victim: int) -> None:
    assert victim != os.getpid()
    os.kill(victim, signal.SIGKILL)


@pytest.mark.long
def test_paillier_trains_the_same_model_on_a_cluster(cluster: Cluster, alone: Run) -> None:
    run = train(cluster.executor)
    same(run, alone)


@pytest.mark.long
def test_work_ahead_of_a_training_on_shares_is_done_on_a_cluster(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(product_work, "MIN_EXECUTOR_SECONDS", 0.0)
    shares = vfl.Protocol(shares=vfl.Shares(chunk=2))
    job = vfl.Job(model=vfl.Logistic(), optimizer=vfl.FedSGD(lr=0.3), protocol=shares, batch_size="all", epochs=10)
    job = job.model_copy(update={"test_fraction": 0.3})
    run = vfl.simulate(job, vfl.datasets.breast_cancer(), executor=cluster.executor, workers=2)
    assert run.metrics["auc"] > 0.97


@pytest.mark.long
def test_the_work_is_done_by_the_workers(cluster: Cluster) -> None:
    timed = TimedExecutor(cluster.executor, 2)
    assert {timed.submit(os.getpid).result() for _ in range(4)} <= set(cluster.workers())


@pytest.mark.long
def test_a_run_loses_nothing_when_a_worker_is_killed(cluster: Cluster, alone: Run) -> None:
    victims = cluster.workers()

    def on_round(done: int, of: int) -> None:
        if done == 1:
            kill(victims[0])

    same(train(cluster.executor, on_round), alone)


@pytest.mark.long
def test_pieces_of_a_killed_worker_are_done_by_the_others(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.client.wait_for_workers(2, timeout=120)
    timed = TimedExecutor(cluster.executor, 2)
    pieces = [timed.submit(hashlib.pbkdf2_hmac, "sha256", b"", bytes([x]), 100_000) for x in range(20)]
    time.sleep(0.3)
    kill(cluster.workers()[0])
    assert [piece.result() for piece in pieces] == [slow(x) for x in range(20)]
    assert "work of an executor was lost" not in caplog.text  # Dask itself did them again


def until_said(cluster: Cluster, text: str) -> bool:
    deadline = time.monotonic() + 120
    while text not in cluster.said() and time.monotonic() < deadline:
        time.sleep(0.1)
    return text in cluster.said()


@pytest.mark.long
def test_a_failure_shows_no_argument_in_any_log(cluster: Cluster) -> None:
    with pytest.raises(OverflowError):
        TimedExecutor(cluster.executor, 2).submit(int.to_bytes, SECRET, 1, "big").result()
    assert until_said(cluster, "Compute Failed")
    assert str(SECRET) not in cluster.said()


@pytest.mark.slow
def test_equal_calls_are_not_answered_from_a_cache(cluster: Cluster) -> None:
    remembering = cluster.client.get_executor(pure=True)
    first, second = (remembering.submit(os.urandom, 16) for _ in range(2))
    assert first.result() == second.result()  # the mutant: encryption would repeat its randomness
    timed = TimedExecutor(remembering, 2)
    first, second = (timed.submit(os.urandom, 16) for _ in range(2))
    assert first.result() != second.result()


@pytest.mark.slow
def test_a_run_ends_well_when_all_workers_are_gone(tmp_path: Path, alone: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    if DASK is None:
        pytest.skip("needs the dask command")
    monkeypatch.setattr(offload, "TASK_TIMEOUT", 0.5)
    cluster = Cluster(tmp_path, nanny=False)
    try:
        victims = cluster.workers()

        def on_round(done: int, of: int) -> None:
            if done == 1:
                for victim in victims:
                    kill(victim)

        same(train(cluster.executor, on_round), alone)
    finally:
        cluster.close()
