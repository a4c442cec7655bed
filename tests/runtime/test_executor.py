"""Executors: equal results on each of them, no loss with a killed worker, and no arguments in logs."""

import hashlib
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest
from builders import raises_code

import securevfl as vfl
from securevfl.errors import CryptoError, TransportError
from securevfl.runtime import worker_backend
from securevfl.runtime.executor import Task, TimedExecutor
from securevfl.runtime.worker_backend import RemoteObject, RemotePart, WorkerFuture
from securevfl.runtime.worker_processes import LazyPool, process_pool
from securevfl.training.run import Run

pytestmark = pytest.mark.exact_outputs

SECRET = 123456789


def train(executor: Executor | None, on_round: Callable[[int, int], None] | None = None) -> Run:
    bank, shop = vfl.datasets.breast_cancer()
    rows = np.arange(64)
    job = vfl.Job(
        model=vfl.Logistic(),
        optimizer=vfl.FedBCD(lr=0.1, local_steps=2),
        protocol=vfl.Protocol(residual=vfl.Paillier(bits=2048)),
        batch_size=22,
        epochs=1,
    )
    return vfl.simulate(job, [bank.take(rows), shop.take(rows)], executor=executor, workers=2, on_round=on_round)


def same(one: Run, other: Run) -> None:
    for name, part in one.parts.items():
        np.testing.assert_array_equal(part.theta, other.parts[name].theta)


@pytest.fixture(scope="module")
def alone() -> Run:
    with ThreadPoolExecutor(1) as pool:
        return train(pool)


def spawned() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(2, mp_context=get_context("spawn"))


@pytest.mark.long
@pytest.mark.parametrize("make", [lambda: ThreadPoolExecutor(2), spawned], ids=["threads", "spawned processes"])
def test_paillier_trains_the_same_model_on_every_executor(alone: Run, make: Callable[[], Executor]) -> None:
    with make() as pool:
        same(train(pool), alone)


def slow(x: int) -> bytes:
    return hashlib.pbkdf2_hmac("sha256", b"", bytes([x]), 100_000)


def submit_slow(executor: Executor, x: int) -> "Future[bytes]":
    """Run `slow`; other processes can import this function."""
    return executor.submit(hashlib.pbkdf2_hmac, "sha256", b"", bytes([x]), 100_000)


def fail() -> None:
    raise CryptoError("as it should")


def kill(victim: int) -> None:
    assert victim != os.getpid()
    os.kill(victim, signal.SIGKILL)


@pytest.mark.long
def test_a_pool_whose_worker_is_killed_in_mid_job_loses_nothing() -> None:
    with spawned() as pool:
        timed = TimedExecutor(pool, 2)
        victim = timed.submit(os.getpid).result()
        pieces = [submit_slow(timed, x) for x in range(20)]
        kill(victim)
        assert [piece.result() for piece in pieces] == [slow(x) for x in range(20)]
        assert submit_slow(timed, 5).result() == slow(5)  # the pool takes nothing more
        with pytest.raises(BrokenExecutor):
            pool.submit(os.getpid)


def test_a_run_continues_after_a_pool_worker_is_killed(alone: Run) -> None:
    with spawned() as pool:
        victim = pool.submit(os.getpid).result()
        same(train(pool, lambda done, of: kill(victim) if done == 1 else None), alone)


def test_a_broken_pool_is_created_again() -> None:
    pools: list[Executor] = []

    def make() -> Executor:
        pools.append(ProcessPoolExecutor(1, mp_context=get_context("forkserver")))
        return pools[-1]

    with LazyPool(make, 1) as pool:
        timed = TimedExecutor(pool, 2)
        kill(timed.submit(os.getpid).result())
        with pytest.raises(BrokenExecutor):
            pools[0].submit(time.sleep, 5).result()
        assert timed.submit(os.getpid).result() != os.getpid()
        assert len(pools) == 2


def test_a_worker_process_survives_growing_memory() -> None:
    with process_pool(1) as pool:
        watched = "__import__('joblib.externals.loky.process_executor', fromlist=['loky'])._USE_PSUTIL"
        assert not pool.submit(eval, watched).result(timeout=60)


def test_an_error_of_the_work_is_raised_and_not_tried_again() -> None:
    with ThreadPoolExecutor(1) as pool:
        outcome = TimedExecutor(pool, 1).submit(fail)
        with raises_code(CryptoError, "SVFL-CRYPTO-CIPHERTEXT"):
            outcome.result()
        assert isinstance(outcome.exception(), CryptoError)


class Silent(Executor):
    """An executor that accepts work and never returns."""

    def submit(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def]
        return Future()


def test_a_lost_task_runs_in_the_waiting_thread() -> None:
    outcome = TimedExecutor(Silent(), 1, task_timeout=0.05).submit(threading.get_ident)
    with pytest.raises(TimeoutError):
        outcome.result(timeout=0.01)
    assert outcome.result() == threading.get_ident()


def test_no_piece_shows_its_arguments_or_equals_another() -> None:
    pieces = [Task(max, SECRET), Task(int)]
    assert all(str(SECRET) not in repr(piece) and "int" not in repr(piece) for piece in pieces)
    assert str(SECRET) in repr(
        partial(max, SECRET)
    )  # a cluster may log this representation of a call that is not a `Task`
    assert pickle.dumps(Task(int)) != pickle.dumps(Task(int))


@pytest.mark.usefixtures("no_collection")
def test_seconds_are_those_of_the_piece_not_of_the_process() -> None:
    def spin() -> None:
        end = time.thread_time() + 0.1
        while time.thread_time() < end:
            pass

    with ThreadPoolExecutor(2) as pool:
        timed = TimedExecutor(pool, 1)
        for outcome in [timed.submit(spin), timed.submit(time.sleep, 0.01)]:
            outcome.result()
        assert 0.1 <= timed.makespan() < 0.15
    assert timed.makespan() == 0.0


def test_a_worker_that_never_answers_is_named_within_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The patience with workers counts from the call, whether it is passed or the one of all workers."""
    raised: WorkerFuture[int] = WorkerFuture("w1")
    raised.set_exception(TimeoutError("a disk of the worker"))
    with pytest.raises(TimeoutError, match="a disk of the worker"):
        raised.result()
    future: WorkerFuture[int] = WorkerFuture("w1")
    monkeypatch.setattr(worker_backend, "WORKER_TIMEOUT", 0.05)
    for timeout in (None, 0.05, 0):
        started = time.monotonic()
        with raises_code(TransportError, "SVFL-JOB-CLUSTER") as late:
            future.result(timeout)
        assert "worker w1" in str(late.value)
        assert time.monotonic() - started < 5
    future.set_result(7)
    assert future.result() == 7


class Done(RemoteObject[Any]):
    """A result at a worker whose functions have finished at once, in the given seconds."""

    worker = "w1"

    def __init__(self, *seconds: float) -> None:
        self.seconds = iter(seconds)

    def run(self, work: Any, /, *args: Any, **kwargs: Any) -> Any:
        future: Future[Any] = Future()
        seconds = next(self.seconds)
        if seconds < 0:
            future.set_exception(CryptoError("the function has failed", code="SVFL-CRYPTO-KEY"))
        else:
            future.set_result((work(None), seconds))
        return future

    def derive(self, make: Any, /, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def test_seconds_of_a_worker_are_handed_out_once() -> None:
    """Otherwise the time of each iteration would contain that of all earlier ones."""
    part = RemotePart(0, 3, Done(0.5, 1.0, -1.0, 0.25, 0.0))
    assert part.spent() == 0.0
    assert [part.run(lambda chunk: 7).result() for _ in range(2)] == [7, 7]
    assert part.spent() == 1.5
    assert part.spent() == 0.0
    assert isinstance(part.run(lambda chunk: 7).exception(), CryptoError)
    assert part.spent() == 0.0
    for expected in (0.25, 0.0):
        part.run(lambda chunk: 7).result()
        assert part.spent() == expected
