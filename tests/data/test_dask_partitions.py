"""A party on a real Dask cluster of two worker processes: weights, location of rows, and a killed worker."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from builders import raises_code
from pyarrow import parquet

import securevfl as vfl
from securevfl.data.partitions import partition_party
from securevfl.data.scaling import Scaling
from securevfl.data.store import open_table, store_table
from securevfl.errors import ConfigError, TransportError
from securevfl.runtime.dask_backend import DaskBackend

pytestmark = pytest.mark.exact_outputs

distributed = pytest.importorskip("distributed")

ROWS = 3000


@pytest.fixture(scope="module")
def cluster_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("dask")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, local_directory=str(folder)
        ) as cluster,
        distributed.Client(cluster) as connected,
    ):
        yield connected


@pytest.fixture
def client(cluster_client: Any) -> Any:
    """Return a client of a cluster with two workers: one that an earlier test has killed starts again."""
    cluster_client.wait_for_workers(2)
    return cluster_client


@pytest.fixture(scope="module")
def stored_parties(tmp_path_factory: pytest.TempPathFactory) -> tuple[vfl.Party, Path]:
    """Return a bank, and the stored table of a shop."""
    folder = tmp_path_factory.mktemp("tables")
    generator = np.random.default_rng(0)
    X = generator.normal(size=(ROWS, 16))
    y = (X @ generator.normal(size=16) + generator.logistic(size=ROWS) > 0).astype(np.int8)
    shop = {"id": np.arange(ROWS)} | {f"c{j}": column for j, column in enumerate(X[:, 4:].T)}
    parquet.write_table(pa.table(shop), folder / "shop.parquet")
    store_table("shop", folder / "shop.parquet", folder / "shop.table")
    return vfl.Party("bank", X[:, :4], y, ids=np.arange(ROWS)), folder / "shop.table"


def ckks_job() -> vfl.Job:
    return vfl.Job(
        model=vfl.Logistic(l2=1e-3),
        optimizer=vfl.FedBCD(lr=0.5, local_steps=2),
        protocol=vfl.Protocol(residual=vfl.Ckks()),
        batch_size="all",
        epochs=4,
        test_fraction=0.2,
        accepts=["columns"],
    )


@pytest.fixture(scope="module")
def alone(stored_parties: tuple[vfl.Party, Path]) -> Any:
    bank, table = stored_parties
    return vfl.simulate(ckks_job(), [bank, open_table("shop", table)])


def same(one: Any, other: Any) -> None:
    for name, part in one.parts.items():
        np.testing.assert_allclose(part.theta, other.parts[name].theta, atol=2e-5)
    assert one.metrics["auc"] == pytest.approx(other.metrics["auc"], abs=1e-4)


WHO = lambda stretch: (os.getpid(), len(stretch))  # noqa: E731  # travels by value: workers have no tests


@pytest.mark.long
def test_two_processes_learn_the_weights_of_one(client: Any, stored_parties: Any, alone: Any) -> None:
    bank, table = stored_parties
    shop = partition_party("shop", table, DaskBackend(client))
    run = vfl.simulate(ckks_job(), [bank, shop])
    same(alone, run)
    assert sum(tally.amount for (_, op), tally in run.parts["shop"].counters.ops.items() if op == "elsewhere") > 0


@pytest.mark.long
def test_no_process_holds_all_rows(client: Any, stored_parties: Any) -> None:
    _, table = stored_parties
    shop: Any = partition_party("shop", table, DaskBackend(client)).X
    matrix = shop.scaled_matrix(np.arange(ROWS), Scaling.none(12))
    rows_by_process = dict(part.run(WHO).result() for part in matrix.parts)
    assert len(rows_by_process) == 2
    assert os.getpid() not in rows_by_process
    assert set(rows_by_process.values()) == {ROWS // 2}
    assert dict(part.run(WHO).result() for part in matrix.parts) == rows_by_process


@pytest.mark.long
def test_a_worker_that_is_killed_costs_time_alone(client: Any, stored_parties: Any, alone: Any) -> None:
    bank, table = stored_parties
    shop = partition_party("shop", table, DaskBackend(client))
    victims = list(client.run(os.getpid).values())

    def on_round(done: int, of: int) -> None:
        if done == 2:
            assert victims[0] != os.getpid()
            os.kill(victims[0], signal.SIGKILL)

    same(alone, vfl.simulate(ckks_job(), [bank, shop], on_round=on_round))


@pytest.mark.long
def test_what_a_worker_raises_is_told_without_its_values(client: Any, stored_parties: Any) -> None:
    _, table = stored_parties
    shop: Any = partition_party("shop", table, DaskBackend(client)).X
    matrix = shop.scaled_matrix(np.arange(ROWS), Scaling.none(12))
    with raises_code(TransportError, "SVFL-JOB-CLUSTER"):
        matrix @ np.full((7, 1), 987654.321)


@pytest.mark.long
def test_a_cluster_without_workers_is_said() -> None:
    class Empty:
        def scheduler_info(self, n_workers: int) -> dict[str, dict[str, str]]:
            return {"workers": {}}

    with raises_code(ConfigError, "SVFL-JOB-CLUSTER"):
        assert DaskBackend(Empty()).workers
