"""Training on shares with rows at the workers of a real Dask cluster equals that in one process.

Both draw the same random bytes. The tests also check which bytes leave a worker, and killed workers and schedulers.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from selfcheck.whole_weights import whole_weights

import securevfl as vfl
from securevfl.base.chunked_matrix import RowChunk
from securevfl.crypto import key_agreement
from securevfl.crypto.kernel.shares import KernelShares
from securevfl.crypto.share_ring import ShareRing
from securevfl.crypto.share_scheme import common_coin
from securevfl.data import schedule
from securevfl.data.external_table import ExternalTable
from securevfl.data.partitions import partition_party
from securevfl.data.read_options import ReadOptions
from securevfl.data.scaling import Scaling
from securevfl.data.store import open_table, store_table
from securevfl.errors import ConfigError, TableError, TransportError
from securevfl.families.shares import shares_facts, shares_measures
from securevfl.protocols.score_ledger.row_ledger import ScoreLedger
from securevfl.protocols.shares import offline_phase, product_work
from securevfl.protocols.shares.shares_params import SharesParams
from securevfl.runtime.dask_backend import DaskBackend, DaskObject
from tests.builders import raises_code
from tests.data.test_partitions import Rooms
from tests.runtime.test_dask import DASK, Cluster

distributed = pytest.importorskip("distributed")
dask = pytest.importorskip("dask")
get_mp_context = distributed.utils.get_mp_context

ROWS, BLOCK, HERE = 1500, 256, "securevfl"
NAMES, COLUMNS = ("bank", "shop", "telco"), (slice(0, 4), slice(4, 12), slice(12, 16))
WORK_KINDS = {"chunk_moments", "gram", "block_sums", "block_change", "multiply_block"}


@contextmanager
def local_cluster(**keys: Any) -> Iterator[Any]:
    """Return a client of worker processes, which are forked from one with all their modules."""
    fork = {"distributed.worker.multiprocessing-method": "forkserver"}
    with tempfile.TemporaryDirectory() as folder, dask.config.set(fork):
        get_mp_context().set_forkserver_preload(["distributed", "securevfl.data.partitions", product_work.__name__])
        with (
            distributed.LocalCluster(
                threads_per_worker=1, dashboard_address=None, local_directory=folder, **keys
            ) as cluster,
            distributed.Client(cluster) as connection,
        ):
            yield connection


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with local_cluster(n_workers=2) as connection:
        yield connection


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use several blocks in several groups, some of them at two workers, and no thread pool that draws randomness."""
    monkeypatch.setattr(shares_facts, "SharesParams", partial(SharesParams, block=BLOCK))
    monkeypatch.setattr(offline_phase, "_MAX_PENDING_VALUES", 10_000)
    monkeypatch.setattr(product_work, "_MIN_THREAD_SECONDS", np.inf)


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that resets randomness: after a call, each party's thread draws the same bytes again."""
    drawn, real = Counter[str](), os.urandom

    def urandom(size: int) -> bytes:
        if not sys._getframe(1).f_globals["__name__"].startswith((HERE, __name__)):
            return real(size)  # Dask's names of tasks
        name = threading.current_thread().name
        drawn[name] += 1
        return hashlib.shake_256(f"{name} {drawn[name]}".encode()).digest(size)

    class Pair(key_agreement.X25519PrivateKey):
        generate = staticmethod(lambda: X25519.from_private_bytes(urandom(32)))

    X25519 = key_agreement.X25519PrivateKey
    monkeypatch.setattr(os, "urandom", urandom)
    monkeypatch.setattr(key_agreement, "X25519PrivateKey", Pair)
    monkeypatch.setattr(
        "securevfl.runtime.party_threads.secrets", type("drawn", (), {"token_bytes": staticmethod(urandom)})
    )
    return drawn.clear


def placed_job(**keys: Any) -> vfl.Job:
    return vfl.Job.from_dict({"model": {"name": "logistic"}, "test_fraction": 0.3, "epochs": 3} | keys)


@pytest.fixture(scope="module")
def table_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, draw = tmp_path_factory.mktemp("tables"), np.random.default_rng(0)
    X = draw.normal(size=(ROWS, 16))
    f = X @ draw.normal(size=16) + draw.logistic(size=ROWS)
    labels = {"y": (f > 0).astype(np.int8), "four": np.digitize(f, [-3, 0, 3])}
    for name, positions in zip(NAMES, COLUMNS, strict=True):
        register = {"id": np.arange(ROWS)} | (labels if name == "bank" else {})
        columns = {f"c{j}": column for j, column in enumerate(X[:, positions].T)}
        for label in labels:
            id_and_label = {key: value for key, value in register.items() if key in ("id", label)}
            parquet.write_table(pa.table(id_and_label | columns), folder / f"{name}.{label}.parquet")
    return folder


def stored(folder: Path, names: tuple[str, ...], of: vfl.Job, label: str = "y") -> dict[str, Path]:
    tables = {}
    for name in names:
        tables[name] = folder / f"{name}.{label}.{of.batch_size}.{schedule.MIN_GROWING_ROWS}.table"
        store_table(name, folder / f"{name}.{label}.parquet", tables[name], ReadOptions(label_column=label), job=of)
    return tables


def weights(run: Any) -> np.ndarray[Any, Any]:
    """Return all weights, which no party has."""
    states = {name: part.state for name, part in run.parts.items()}
    return np.concatenate(list(whole_weights(run.job, states, "bank").values()))


def both(paths: dict[str, Path], of: vfl.Job, engine: Any, placed: tuple[str, ...], draws: Any, **keys: Any) -> Any:
    """Run the training in one process, and with the rows of some parties at workers."""
    draws()
    alone = vfl.simulate(of, [open_table(name, path) for name, path in paths.items()])
    cut: dict[str, Any] = {"rows": BLOCK} if len(paths) > 2 else {"partitions": 2}
    parties = [
        partition_party(name, path, engine, **cut) if name in placed else open_table(name, path)
        for name, path in paths.items()
    ]
    draws()
    return alone, vfl.simulate(of, parties, **keys)


@pytest.mark.long
@pytest.mark.parametrize(
    ("names", "placed"),
    [
        pytest.param(NAMES[:2], ("shop",), id="shop of 2"),
        pytest.param(NAMES[:2], NAMES[:2], id="both", marks=pytest.mark.slow),
        pytest.param(NAMES, ("telco",), id="third", marks=pytest.mark.slow),
        pytest.param(NAMES, NAMES, id="all of 3"),
    ],
)
def test_the_weights_are_those_of_one_process_and_no_row_leaves(
    client: Any, table_folder: Path, names: Any, placed: Any, draws: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, run_placed = list[tuple[str, bytes]](), DaskObject.run

    def noted(self: Any, work: Any, /, *args: Any, **keys: Any) -> Any:
        future = run_placed(self, work, *args, **keys)
        future.add_done_callback(lambda done: results.append((work.__name__, pickle.dumps(done.result()[0]))))
        return future

    monkeypatch.setattr(DaskObject, "run", noted)
    of = placed_job()
    paths = stored(table_folder, names, of)
    client.wait_for_workers(2, timeout=60)  # an earlier test may have cost a worker, which the cluster starts again
    before = left(client)
    alone, run = both(paths, of, DaskBackend(client), placed, draws)
    np.testing.assert_array_equal(weights(run), weights(alone))
    assert run.metrics == alone.metrics
    assert {kind for kind, _ in results} == WORK_KINDS
    result_bytes = sum(len(value) for _, value in results)
    assert left(client) - before <= result_bytes + 1024 * len(results)  # the results, and the names of tasks
    everything, numbers = b"".join(value for _, value in results), run.job.protocol.shares
    assert numbers is not None
    for name in placed:  # no row as numbers, nor as whole numbers of two bytes
        X = open_table(name, paths[name]).X[np.arange(0, ROWS, 50)]
        scaled = run.parts[name].scaling(X)
        for row in (*X, *X.astype(np.float32), *scaled, *np.rint(scaled * 256).astype(np.int16)):
            assert row.tobytes() not in everything


def left(client: Any) -> int:
    """Return the number of bytes that have left the workers."""
    return sum(client.run(lambda dask_worker: dask_worker.transfer_outgoing_bytes_total).values())


@pytest.mark.parametrize(
    ("keys", "label"),
    [
        pytest.param({"model": {"name": "one_vs_rest"}}, "four", marks=pytest.mark.slow),
        ({"model": {"name": "trees", "trees": 4}}, "y"),
        ({"optimizer": {"name": "fedsgd", "lr": 0.3}, "batch_size": 400, "epochs": 2}, "y"),
        ({"weights": {"classes": "balanced"}}, "y"),
        ({"protocol": {"shares": {"open_weights": ["shop"]}}}, "y"),
        ({"optimizer": {"name": "block_descent", "early_stop": 9.0}, "batch_size": "all", "epochs": 15}, "y"),
        pytest.param({"epochs": 20}, "growing", marks=pytest.mark.slow),
    ],
    ids=["classes", "trees", "batches", "weights", "opened", "stopped", "growing"],
)
def test_all_that_trains_on_shares_trains_at_workers(
    table_folder: Path, keys: Any, label: str, draws: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if label == "growing":
        monkeypatch.setattr(schedule, "MIN_GROWING_ROWS", 500)
        monkeypatch.setattr(schedule, "MIN_SUBSET_ROWS", 200)
        label = "y"
    of = placed_job(**keys)
    names = NAMES if label == "four" else NAMES[:2]
    alone, run = both(stored(table_folder, names, of, label), of, Rooms(), names, draws)
    np.testing.assert_array_equal(weights(run), weights(alone))
    assert run.metrics == alone.metrics


@pytest.mark.long
@pytest.mark.parametrize(
    "where",
    ["pairs", *(pytest.param(name, marks=pytest.mark.slow) for name in ("multiply_block", "block_change"))],
)
def test_a_worker_that_is_killed_changes_nothing(
    client: Any, table_folder: Path, where: str, draws: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During preprocessing, an iteration or an evaluation: lost results are recomputed from the same rows and masks."""
    of, killed = placed_job(), list[int]()
    paths = stored(table_folder, NAMES[:2], of)

    def kill() -> None:
        if not killed:
            killed.append(next(iter(client.run(os.getpid).values())))
            os.kill(killed[0], signal.SIGKILL)

    run_placed, pairs = DaskObject.run, shares_measures.open_pairs

    def run(self: Any, work: Any, /, *args: Any, **keys: Any) -> Any:
        if work.__name__ == where:
            kill()
        return run_placed(self, work, *args, **keys)

    def measured(*args: Any, **keys: Any) -> Any:
        if where == "pairs" and threading.current_thread().name == "shop":
            kill()
        return pairs(*args, **keys)

    draws()
    alone = vfl.simulate(of, [open_table(name, path) for name, path in paths.items()])
    parties = [open_table("bank", paths["bank"]), partition_party("shop", paths["shop"], DaskBackend(client))]
    monkeypatch.setattr(DaskObject, "run", run)
    monkeypatch.setattr(shares_measures, "open_pairs", measured)
    draws()
    run_of_workers = vfl.simulate(of, parties)
    assert killed
    np.testing.assert_array_equal(weights(run_of_workers), weights(alone))
    assert run_of_workers.metrics == alone.metrics


@pytest.mark.long
@pytest.mark.skipif(DASK is None, reason="needs the dask command")
@pytest.mark.parametrize("lost", ["workers", pytest.param("scheduler", marks=pytest.mark.slow)])
def test_a_cluster_that_is_gone_ends_the_run_with_what_to_do(table_folder: Path, lost: str, tmp_path: Path) -> None:
    of = placed_job()
    paths = stored(table_folder, NAMES[:2], of)
    with cluster_that_loses(lost, tmp_path) as (client, kill):

        def on_round(done: int, of: int) -> None:
            if done == 1:
                kill()

        shop = partition_party("shop", paths["shop"], DaskBackend(client))
        with raises_code(TransportError, "SVFL-JOB-CLUSTER"):
            vfl.simulate(of, [open_table("bank", paths["bank"]), shop], on_round=on_round)


@contextmanager
def cluster_that_loses(lost: str, folder: Path) -> Iterator[tuple[Any, Callable[[], None]]]:
    """Return the client of a cluster of one worker, and a function that kills the worker or the scheduler."""
    if lost == "workers":
        with local_cluster(n_workers=1) as client:
            (nanny,) = client.cluster.workers.values()
            nanny.auto_restart = False
            yield client, partial(os.kill, nanny.pid, signal.SIGKILL)
        return
    cluster = Cluster(folder, nanny=False, workers=1)
    try:
        yield cluster.client, cluster._started[0].kill
    finally:
        cluster.close()


@pytest.mark.parametrize("cuts", [(0, 40), (0, 13, 40)])
@pytest.mark.parametrize("turned", [False, True])
def test_products_of_parts_are_hidden_as_one(cuts: tuple[int, ...], turned: bool) -> None:
    scheme, draw = KernelShares(41), np.random.default_rng(3)
    W = draw.integers(-300, 300, (40, 6))
    factor = W.T if turned else W
    ring, coin = ShareRing(41), common_coin(os.urandom(32), os.urandom(32), 0, "test")
    V = ring.reduce(draw.integers(2**41, size=(factor.shape[0], 5), dtype=np.uint64))
    holder = scheme.keygen(coin)
    sealed = holder.encrypt(V, columns=factor.shape[1])
    parts = []
    for start, stop in pairwise(cuts):
        part = np.zeros_like(W)
        part[start:stop] = W[start:stop]
        parts.append(scheme.multiply(part.T if turned else part, sealed))
        assert parts[-1] == scheme.multiply(part.T if turned else part, sealed)  # a repeated call gives the same bytes
    evaluator = scheme.evaluator(holder.public, coin)
    reply, share = evaluator.hide(evaluator.join(sealed, factor.shape[1], parts))
    error = ring.signed(ring.reduce(share + holder.open(reply) - ring.of(factor.T) @ V))
    assert np.abs(error).max() <= 1
    other, _ = evaluator.hide(evaluator.join(sealed, factor.shape[1], parts))
    assert other != reply  # the masks are fresh


def test_a_partition_travels_without_its_rows(table_folder: Path) -> None:
    path = stored(table_folder, ("shop",), placed_job())["shop"]
    shop: Any = partition_party("shop", path, Rooms(), partitions=2).X
    for room in shop._placed:
        data = pickle.dumps(room.thing)
        assert len(data) < 1000
        np.testing.assert_array_equal(pickle.loads(data)[:], room.thing[:])
    chunk = RowChunk(shop._placed[0].thing)
    chunk.cache["rows"] = room.thing[:]
    assert len(pickle.dumps(chunk)) < 1000
    store_table("shop", table_folder / "shop.y.parquet", path, job=placed_job(test_fraction=0.5))
    with raises_code(TableError, "SVFL-TABLE-CHANGED", file=str(path)):
        pickle.loads(data)


def test_what_cannot_be_is_refused_before_anything_is_sent(table_folder: Path) -> None:
    of, events = placed_job(), list[Any]()
    paths = stored(table_folder, NAMES[:2], of)
    bank, shop = open_table("bank", paths["bank"]), partition_party("shop", paths["shop"], Rooms())
    seal = placed_job(protocol={"shares": {"library": "seal"}})
    with raises_code(ConfigError, "SVFL-JOB-COMBINATION"):
        vfl.simulate(seal, [bank, shop], observe=events.append)
    small = placed_job(optimizer={"name": "fedsgd", "lr": 0.3}, batch_size=400, epochs=2)
    with raises_code(TableError, "SVFL-TABLE-ON-DISK", party="shop"):
        vfl.simulate(small, [bank, shop], observe=events.append)
    sent = {type(event.message).__name__ for event in events if event.me == "shop" and event.direction == "send"}
    assert sent == {"RunHello", "Abort"}


@pytest.mark.slow
def test_a_ledger_notes_rows_at_workers_as_those_of_a_table(table_folder: Path, tmp_path: Path) -> None:
    path = stored(table_folder, ("shop",), placed_job())["shop"]
    local, placed = open_table("shop", path), partition_party("shop", path, Rooms(), partitions=3)
    rows, noted, outside = placed_job().schedule(local.register).batch_order, list[Any](), cast(ExternalTable, placed.X)
    for name, X in ((b"1" * 16, local.X[rows]), (b"2" * 16, outside.scaled_matrix(rows, Scaling.none(8)))):
        ledger = ScoreLedger(tmp_path / "scores")
        ledger.record_model(name, 20, [b"%d" % row for row in rows], X)
        with ledger._file.reading() as tables_:
            select = "SELECT content, count FROM contents JOIN names ON number = model WHERE name = ? ORDER BY content"
            noted.append(tables_.execute(select, (name.hex(),)).fetchall())
    assert len(noted[0]) == len(rows)
    assert noted[0] == noted[1]
