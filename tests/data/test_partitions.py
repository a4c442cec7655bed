"""A party whose rows are in partitions trains the same model as in one process, and no process holds all rows."""

from collections.abc import Callable
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from builders import raises_code
from pyarrow import parquet

import securevfl as vfl
from securevfl.base.chunked_matrix import ChunkedMatrix
from securevfl.crypto.kernel import row_plaintexts
from securevfl.data import external_table
from securevfl.data.location_scale import moments
from securevfl.data.partitions import PartitionedParty, PartitionedTable, partition_party
from securevfl.data.scaling import Scaling
from securevfl.data.store import open_table, store_table
from securevfl.errors import ConfigError, DataError, TableError
from securevfl.protocols.engines import Engine
from securevfl.runtime.executor import Task
from securevfl.runtime.worker_backend import RemoteObject, RemotePart, WorkerBackend

ROWS = 1000


class Room(RemoteObject[Any]):
    """An object in this process, which belongs to a worker only by name."""

    def __init__(self, worker: str, thing: Any) -> None:
        self.worker = worker
        self.thing = thing

    def run(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(Task(work, *args, **kwargs).run(self.thing))
        except Exception as error:
            future.set_exception(error)
        return future

    def derive(self, make: Callable[..., Any], /, *args: Any, **kwargs: Any) -> RemoteObject[Any]:
        return Room(self.worker, make(self.thing, *args, **kwargs))


class Rooms(WorkerBackend):
    """A substitute for Dask with two workers that are not processes."""

    workers = ("one", "two")

    def place(self, worker: str, make: Callable[..., Any], /, *args: Any, **kwargs: Any) -> RemoteObject[Any]:
        return Room(worker, make(*args, **kwargs))


@pytest.fixture(scope="module")
def stored_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bank.table with labels, shop.table."""
    folder = tmp_path_factory.mktemp("tables")
    generator = np.random.default_rng(0)
    X = generator.normal(size=(ROWS, 12)) * np.linspace(0.5, 8, 12) + 3
    y = (X @ generator.normal(size=12) + generator.logistic(size=ROWS) * 4 > 0).astype(np.int8)
    for name, columns in (("bank", slice(0, 4)), ("shop", slice(4, 12))):
        content = {"id": np.arange(ROWS)} | ({"y": y} if name == "bank" else {})
        content |= {f"c{j}": column for j, column in enumerate(X[:, columns].T)}
        parquet.write_table(pa.table(content), folder / f"{name}.parquet")
        store_table(name, folder / f"{name}.parquet", folder / f"{name}.table")
    return folder


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_plaintexts, "BLOCKS_PER_PIECE", 2)


def scaled_job(residual: Engine | str, **keys: Any) -> vfl.Job:
    options: dict[str, Any] = {
        "model": vfl.Logistic(l2=1e-3),
        "optimizer": vfl.FedBCD(lr=0.5, local_steps=2),
        "protocol": vfl.Protocol(residual=residual),  # type: ignore[arg-type]
        "batch_size": "all",
        "epochs": 3,
        "test_fraction": 0.2,
        "accepts": ["columns"],
    }
    return vfl.Job(**(options | keys))


@pytest.mark.exact_outputs
@pytest.mark.parametrize("residual", ["open", vfl.Ckks()], ids=str)
@pytest.mark.parametrize("partitions", [2, 5])
def test_the_weights_are_those_of_one_process(stored_tables: Path, residual: Engine | str, partitions: int) -> None:
    bank = open_table("bank", stored_tables / "bank.table")
    alone = vfl.simulate(scaled_job(residual), [bank, open_table("shop", stored_tables / "shop.table")])
    parted = partition_party("shop", stored_tables / "shop.table", Rooms(), partitions=partitions)
    run = vfl.simulate(scaled_job(residual), [bank, parted])
    for name, part in alone.parts.items():
        np.testing.assert_allclose(part.theta, run.parts[name].theta, atol=1e-9 if residual == "open" else 2e-5)
    assert run.metrics["auc"] == pytest.approx(alone.metrics["auc"], abs=1e-4)


@pytest.mark.exact_outputs
def test_curvature_adds_up_over_partitions(stored_tables: Path) -> None:
    bank, newton = open_table("bank", stored_tables / "bank.table"), vfl.BlockNewton()
    alone = vfl.simulate(
        scaled_job(vfl.Ckks(), optimizer=newton), [bank, open_table("shop", stored_tables / "shop.table")]
    )
    parted = partition_party("shop", stored_tables / "shop.table", Rooms(), partitions=3)
    run = vfl.simulate(scaled_job(vfl.Ckks(), optimizer=newton), [bank, parted])
    for name, part in alone.parts.items():
        np.testing.assert_allclose(part.theta, run.parts[name].theta, atol=5e-5)


def test_both_parties_may_be_in_partitions(stored_tables: Path) -> None:
    parties = [open_table(name, stored_tables / f"{name}.table") for name in ("bank", "shop")]
    parted = [partition_party(name, stored_tables / f"{name}.table", Rooms()) for name in ("bank", "shop")]
    newton = scaled_job("open", optimizer=vfl.BlockNewton())
    one, other = vfl.simulate(newton, parties), vfl.simulate(newton, parted)
    for name, part in one.parts.items():
        np.testing.assert_allclose(part.theta, other.parts[name].theta, atol=1e-9)


def test_the_party_s_own_process_asks_for_few_rows(stored_tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row_counts, fetch = [0], PartitionedTable.__getitem__

    def counted(self: PartitionedTable, rows: Any) -> Any:
        values = fetch(self, rows)
        row_counts.append(len(values))
        return values

    for module in ("training.session", "families.run_shape"):
        monkeypatch.setattr(f"securevfl.{module}.MAX_SAMPLE_ROWS", 50)
    monkeypatch.setattr("securevfl.families.rounds.rounds_participant.INITIAL_WEIGHT_ROWS", 50)
    monkeypatch.setattr("securevfl.data.baseline.MAX_EXTERNAL_BASELINE_ROWS", 50)
    monkeypatch.setattr(PartitionedTable, "__getitem__", counted)
    parted = partition_party("shop", stored_tables / "shop.table", Rooms())
    vfl.simulate(scaled_job(vfl.Ckks()), [open_table("bank", stored_tables / "bank.table"), parted])
    assert 0 < max(row_counts) <= 50


def test_smaller_batches_are_read_from_the_table(stored_tables: Path) -> None:
    bank = open_table("bank", stored_tables / "bank.table")
    small = scaled_job("open", batch_size=100)
    alone = vfl.simulate(small, [bank, open_table("shop", stored_tables / "shop.table")])
    run = vfl.simulate(small, [bank, partition_party("shop", stored_tables / "shop.table", Rooms())])
    for name, part in alone.parts.items():
        np.testing.assert_allclose(part.theta, run.parts[name].theta, atol=1e-12)


def test_a_table_on_disk_is_never_whole_in_memory(stored_tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a batch larger than the rows read at a time, the model is the same up to rounding."""
    parties = [open_table(name, stored_tables / f"{name}.table") for name in ("bank", "shop")]
    in_memory = vfl.simulate(scaled_job("open"), parties)
    monkeypatch.setattr(external_table, "MAX_BATCH_BYTES", 0)
    monkeypatch.setattr("securevfl.base.chunked_matrix.BLOCK_NUMBERS", 8 * 100)
    blocks = vfl.simulate(scaled_job("open"), parties)
    for name, part in in_memory.parts.items():
        np.testing.assert_allclose(part.theta, blocks.parts[name].theta, atol=1e-9)


def test_moments_of_partitions_are_those_of_the_table(stored_tables: Path) -> None:
    stored, parted = (
        open_table("shop", stored_tables / "shop.table"),
        partition_party("shop", stored_tables / "shop.table", Rooms()),
    )
    rows = np.arange(3, ROWS, 2)
    for one, other in zip(moments(stored.X, rows), moments(parted.X, rows), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_parts_lie_at_the_workers_in_turn(stored_tables: Path) -> None:
    parted = partition_party("shop", stored_tables / "shop.table", Rooms(), partitions=3)
    assert isinstance(parted, PartitionedParty)
    table: Any = parted.X
    matrix = table.scaled_matrix(np.arange(ROWS), Scaling.none(8))
    assert isinstance(matrix, ChunkedMatrix)
    assert [part.worker for part in matrix.parts] == ["one", "two", "one"]
    assert all(isinstance(part, RemotePart) for part in matrix.parts)
    assert [(part.start, part.stop) for part in matrix.parts] == [*pairwise(table.edges)]
    assert matrix.makespan() == 0.0
    matrix @ np.ones((8, 1))
    assert matrix.makespan() > 0.0
    assert table.scaled_matrix(np.array([2, 1]), Scaling.none(8)) is None


@pytest.mark.parametrize("partitions", [-1, ROWS + 1])
def test_a_number_of_partitions_that_cannot_be(stored_tables: Path, partitions: int) -> None:
    with raises_code(TableError, "SVFL-TABLE-SHAPE"):
        partition_party("shop", stored_tables / "shop.table", Rooms(), partitions=partitions)


def test_paillier_says_that_it_takes_arrays(stored_tables: Path) -> None:
    parties = [
        open_table("bank", stored_tables / "bank.table"),
        partition_party("shop", stored_tables / "shop.table", Rooms()),
    ]
    with raises_code(ConfigError, "SVFL-JOB-UNSUPPORTED"):
        vfl.simulate(scaled_job(vfl.Paillier(bits=2048)), parties, workers=1)


def test_a_table_that_the_disk_has_changed_goes_to_no_worker(stored_tables: Path, tmp_path: Path) -> None:
    changed = bytearray((stored_tables / "shop.table").read_bytes())
    changed[-100] ^= 1
    (tmp_path / "shop.table").write_bytes(changed)
    with raises_code(DataError, "SVFL-TABLE-CHANGED"):
        partition_party("shop", tmp_path / "shop.table", Rooms())


@pytest.mark.exact_outputs
def test_parts_that_end_with_a_block_are_multiplied_whole(tmp_path: Path) -> None:
    """512 training rows in two parts of 256 rows, which is the number of rows of a block of an encrypted product."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(640, 12))
    y = (X @ rng.normal(size=12) > 0).astype(np.int8)
    for name, columns in (("bank", slice(0, 4)), ("shop", slice(4, 12))):
        content = {"id": np.arange(640)} | ({"y": y} if name == "bank" else {})
        content |= {f"c{j}": column for j, column in enumerate(X[:, columns].T)}
        parquet.write_table(pa.table(content), tmp_path / f"{name}.parquet")
        store_table(name, tmp_path / f"{name}.parquet", tmp_path / f"{name}.table")
    bank, shop = (open_table(name, tmp_path / f"{name}.table") for name in ("bank", "shop"))
    alone = vfl.simulate(scaled_job(vfl.Ckks()), [bank, shop])
    run = vfl.simulate(scaled_job(vfl.Ckks()), [bank, partition_party("shop", tmp_path / "shop.table", Rooms())])
    for name, part in alone.parts.items():
        np.testing.assert_allclose(part.theta, run.parts[name].theta, atol=2e-5)
