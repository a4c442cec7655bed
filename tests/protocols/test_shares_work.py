"""Products of a training on shares, computed in several processes of one party: the same shares, order and model."""

from __future__ import annotations

import os
import pickle
from collections import Counter
from concurrent.futures import Executor, ThreadPoolExecutor

import numpy as np
import pytest
from selfcheck.whole_weights import whole_weights

import securevfl as vfl
from securevfl.crypto import share_scheme
from securevfl.crypto.kernel.shares import KernelShares
from securevfl.crypto.lattice.lattice_shares import LatticeShares
from securevfl.crypto.share_ring import ShareRing
from securevfl.crypto.share_scheme import common_coin
from securevfl.errors import CryptoError
from securevfl.protocols.shares import product_work
from securevfl.protocols.shares.product_work import ProductExecutor
from securevfl.runtime.clock import VirtualClock
from securevfl.runtime.costs import CostCounters, Kind, Stage
from securevfl.runtime.meter import Meter
from securevfl.runtime.network import Network
from securevfl.runtime.worker_processes import process_pool
from tests.builders import raises_code


@pytest.fixture(scope="module", params=[LatticeShares, KernelShares], ids=lambda engine: engine.name)
def scheme(request):
    return request.param(41)


class Counting(Executor):
    """An executor that forwards calls to another one and counts them by function."""

    def __init__(self, inner):
        self.inner, self.done = inner, Counter()

    def submit(self, fn, /, *args, **kwargs):
        call = args[0]._work if args else fn
        while hasattr(call, "func"):
            call = call.func
        self.done[call.__name__] += 1
        return self.inner.submit(fn, *args, **kwargs)


@pytest.fixture(scope="module")
def pool():
    with process_pool(2) as workers:
        yield workers


def keys(scheme):
    coin = common_coin(os.urandom(32), os.urandom(32), 0, "work")
    holder = scheme.keygen(coin)
    return holder, scheme.evaluator(holder.public, coin)


def meter(executor):
    return Meter(VirtualClock(Network()), CostCounters(), executor, 2)


@pytest.mark.parametrize("chosen", [False, True], ids=["own pool", "chosen"])
def test_shares_made_elsewhere_sum_to_the_product(pool, scheme, chosen):
    """Shares are computed in threads (for the kernel, of this process's own pool) and in other processes."""
    ring, (holder, evaluator) = ShareRing(41), keys(scheme)
    rng = np.random.default_rng(0)
    W, V = rng.integers(-500, 500, (300, 7)), rng.integers(0, 2**41, (300, 3), dtype=np.uint64)
    work = ProductExecutor(meter(Counting(pool) if chosen else pool), scheme, product_work.MIN_EXECUTOR_SECONDS)
    assert work.away == (chosen or not scheme.unlocked)
    assert not work.here
    (sealed,) = work.in_order("encrypt", [work.encrypting(holder, V, 7, 1)])
    ((reply, share),) = work.in_order("compute", [work.multiplying(evaluator, W, sealed)])
    (theirs,) = work.in_order("decrypt", [work.opening(holder, reply)])
    errors = ring.signed(
        ring.reduce(share + theirs - (W.astype(object).T @ V.astype(object) % 2**41).astype(np.uint64))
    )
    assert np.abs(errors).max() <= 1
    np.testing.assert_array_equal(theirs, holder.open(reply))


def test_results_come_in_order_and_calls_as_late_as_they_can(monkeypatch, scheme):
    """Each call waits as long as possible, so that not all received queries are in memory."""
    for name in ("_MAX_PENDING", "_MAX_PENDING_THREADS"):
        monkeypatch.setattr(product_work, name, 3)
    begun = []

    def calls():
        for k in range(9):
            begun.append(k)
            yield lambda k=k: k * k

    with ThreadPoolExecutor(4) as threads:
        results = ProductExecutor(meter(threads), scheme, product_work.MIN_EXECUTOR_SECONDS).in_order(
            "compute", calls()
        )
        for k in range(9):
            assert next(results) == k * k
            assert len(begun) <= k + 3
    assert begun == list(range(9))


def test_little_work_stays_here(pool, scheme):
    for executor in (pool, Counting(pool)):
        assert not ProductExecutor(meter(executor), scheme, product_work.MIN_EXECUTOR_SECONDS / 2).away
        assert ProductExecutor(meter(executor), scheme, product_work.MIN_EXECUTOR_SECONDS / 20).here
    assert ProductExecutor(meter(None), scheme, 1e9).here


def test_work_elsewhere_is_on_the_clock_and_in_the_books(pool, scheme):
    metered = meter(pool)
    holder, _ = keys(scheme)
    work = ProductExecutor(metered, scheme, product_work.MIN_EXECUTOR_SECONDS)
    V = np.zeros((4096, 4), np.uint64)
    assert len(list(work.in_order("encrypt", [work.encrypting(holder, V, 30, 1)] * 2))) == 2
    spent = metered._clock.path()[Stage.SETUP, Kind.ENCRYPTION]
    assert spent > 1e-3
    assert metered._counters.ops[Stage.SETUP, "encrypt"].count == 2


def test_an_exported_holder_is_equal_and_has_a_fixed_length(scheme):
    holder, evaluator = keys(scheme)
    sealed = holder.encrypt(np.arange(5, dtype=np.uint64)[:, None], columns=2)
    reply, _ = evaluator.product(evaluator.prepare(np.ones((5, 2), int)), sealed)
    again = scheme.holder(holder.exported())
    assert again.public == holder.public
    np.testing.assert_array_equal(again.open(reply), holder.open(reply))
    for size in (0, 16, len(holder.exported()) - 1):
        with raises_code(CryptoError, "SVFL-CRYPTO-CIPHERTEXT"):
            scheme.holder(holder.exported()[:size])


def test_the_scheme_travels(scheme):
    assert pickle.loads(pickle.dumps(scheme)).bits == scheme.bits


@pytest.mark.parametrize(
    ("parties", "on_threads"),
    [
        (2, False),
        pytest.param(3, False, marks=pytest.mark.slow),
        (2, True),
        pytest.param(3, True, marks=pytest.mark.slow),
    ],
)
def test_training_on_an_executor_gives_the_same_model(pool, monkeypatch, parties, on_threads):
    """on_threads: whether to use threads of this process's own pool; otherwise, an executor that the caller passes."""
    monkeypatch.setattr(product_work, "MIN_EXECUTOR_SECONDS", 0.0)
    monkeypatch.setattr(product_work, "_MIN_THREAD_SECONDS", 0.0)
    tables = vfl.datasets.breast_cancer(parties)
    shares = vfl.Protocol(shares=vfl.Shares(chunk=3))
    job = vfl.Job(
        model=vfl.Logistic(), optimizer=vfl.FedSGD(lr=0.3), protocol=shares, batch_size=200, epochs=6, test_fraction=0.2
    )
    counting = Counting(pool.threads if on_threads else pool)
    if on_threads:
        monkeypatch.setattr(pool, "threads", counting)
    chosen = pool if on_threads else counting
    runs = [vfl.simulate(job, tables, executor=executor, workers=2 if executor else 1) for executor in (chosen, None)]
    weights = [
        whole_weights(job, {name: part.state for name, part in run.parts.items()}, tables[0].name) for run in runs
    ]
    for name, theta in weights[0].items():
        assert np.abs(theta - weights[1][name]).max() < 0.12
    assert abs(runs[0].metrics["auc"] - runs[1].metrics["auc"]) < 0.01
    batches, chunks, holders = 2, 2, 2
    named = share_scheme.encrypt_exported, share_scheme.multiply_part, share_scheme.open_exported
    names = [function.__name__ for function in named] if not on_threads else ["encrypt", "open"]
    for name in names:  # all blocks of a batch have one reply with a product for the steps
        least = holders * chunks * (batches + 1) if name == "multiply_part" else holders * chunks * batches * 2
        assert counting.done[name] >= least
    if on_threads:  # one call computes all products of a batch
        assert counting.done["compute"] >= parties * batches * chunks * 2
