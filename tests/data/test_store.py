"""Tables on disk give the same rows, checks and models as in memory, are written completely or not at all."""

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from builders import raises_code
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import csv, parquet

import securevfl as vfl
from securevfl import errors
from securevfl.credit.description import describe
from securevfl.data import csv_file, external_table, preparation, store, table_source
from securevfl.data.column_types import read_types
from securevfl.data.location_scale import moments
from securevfl.data.party import Party
from securevfl.data.read_options import ReadOptions
from securevfl.data.readers import read_party
from securevfl.data.store import StoredTable, copy_to_temporary_table, open_table, store_table
from securevfl.families.table_preparation import prepare_party

N, D = 300, 4
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(N, D))
IDS = np.array([f"p{i}" for i in GENERATOR.permutation(N)])
Y = (X[:, 0] > 0).astype(np.int64)
DRAWN_ROWS = GENERATOR.permutation(N)[:250]
SECRET = 987654.125


def store_job(*, test: float = 0.2, reshuffle: bool = False) -> vfl.Job:
    return vfl.Job(
        model=vfl.Logistic(),
        optimizer=vfl.FedBCD(lr=0.1),
        protocol=vfl.Protocol(residual="open"),
        batch_size=32,
        epochs=3,
        test_fraction=test,
        reshuffle=reshuffle,
        accepts=["columns"],
    )


def write(path: Path, X: np.ndarray = X, *, labels: bool = False, kind: str = "f8", group: int = 64) -> Path:
    columns = {"id": IDS[: len(X)], **({"y": Y[: len(X)]} if labels else {})}
    columns |= {f"c{j}": X[:, j].astype(kind) for j in range(X.shape[1])}
    parquet.write_table(pa.table(columns), path, row_group_size=group)
    return path


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use batches of 7 rows and buckets of 11."""
    monkeypatch.setattr(table_source, "BATCH_BYTES", 8 * D * 7)
    monkeypatch.setattr(store, "BUCKET_BYTES", (8 + 8 * D) * 11)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("kind", ["f8", "f4", "f2", "i2", "i8"])
@pytest.mark.parametrize("order", [None, store_job(), store_job(test=0.0), store_job(reshuffle=True)], ids=str)
def test_rows_are_those_of_the_table_in_memory(tmp_path: Path, kind: str, order: vfl.Job | None) -> None:
    path = write(tmp_path / "t.parquet", 100 * X, labels=True, kind=kind)
    in_memory = read_party("bank", path).take(DRAWN_ROWS)
    stored = store_table("bank", path, tmp_path / "t.table", rows=DRAWN_ROWS, job=order)
    assert (len(stored), stored.columns, stored.active) == (len(in_memory), in_memory.columns, True)
    assert stored.X.shape == in_memory.X.shape
    assert stored.order == in_memory.order != b""
    assert stored.has_ids
    assert stored.register == in_memory.register
    np.testing.assert_array_equal(stored.register.order, in_memory.register.order)
    assert stored.content == in_memory.content
    np.testing.assert_array_equal(stored.y, in_memory.y)
    np.testing.assert_array_equal(stored.X[:], in_memory.X)
    for rows in (GENERATOR.permutation(250)[:40], np.arange(3, 9), np.array([5]), np.array([7, 7, 2]), np.arange(0)):
        np.testing.assert_array_equal(stored.X[rows], in_memory.X[rows])
        assert stored.keys_of(rows) == in_memory.keys_of(rows)  # a model of stored rows recognizes them later by these
    np.testing.assert_array_equal(stored.take(np.arange(9)).X, in_memory.X[:9])
    again = open_table("bank", tmp_path / "t.table")
    np.testing.assert_array_equal(again.X[10:20], in_memory.X[10:20])
    assert [file.name for file in tmp_path.iterdir() if file.name not in ("t.parquet", "t.table")] == []


def test_a_batch_is_one_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, work = write(tmp_path / "t.parquet"), store_job()
    ordered = store_table("shop", path, tmp_path / "a.table", job=work)
    shared = store_table("shop", path, tmp_path / "b.table")
    schedule = work.schedule(ordered.register)
    reads = []
    fill = StoredTable._fill

    def counted(self: StoredTable, buffer: memoryview, offset: int) -> None:
        reads.append(len(buffer))
        fill(self, buffer, offset)

    monkeypatch.setattr(StoredTable, "_fill", counted)
    batch = schedule.partition(0)[2]
    np.testing.assert_array_equal(ordered.X[batch], X[batch])
    assert len(reads) == 1
    ordered.X[schedule.test]
    assert len(reads) == 2
    np.testing.assert_array_equal(shared.X[batch], X[batch])
    assert len(reads) > 20


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("test", [0.0, 0.2])
def test_the_model_is_the_one_of_tables_in_memory(tmp_path: Path, test: float) -> None:
    work = store_job(test=test)
    bank = Party("bank", X[:, :2], Y, ids=IDS)
    path = write(tmp_path / "t.parquet")
    shop = read_party("shop", path)
    stored = store_table("shop", path, tmp_path / "t.table", job=work)
    one, other = vfl.simulate(work, [bank, shop]), vfl.simulate(work, [bank, stored])
    for name, part in one.parts.items():
        np.testing.assert_array_equal(part.theta, other.parts[name].theta)
    assert one.metrics == other.metrics
    assert vfl.explain(work, [bank, stored]) == vfl.explain(work, [bank, shop])


def test_rows_in_another_order_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet")
    bank = Party("bank", X[:, :2], Y, ids=IDS)
    stored = store_table("shop", path, tmp_path / "t.table", rows=np.roll(np.arange(N), 1))
    with raises_code(errors.IdError, "SVFL-ID-ORDER"):
        vfl.simulate(store_job(), [bank, stored])


@pytest.mark.parametrize("order", [None, store_job()], ids=["as given", "by batches"])
def test_only_rows_of_the_table_are_read(tmp_path: Path, order: vfl.Job | None) -> None:
    """The bytes after the last row are those of the checksum, and those before the first row are the header."""
    table = store_table("shop", write(tmp_path / "t.parquet"), tmp_path / "t.table", job=order).X
    rows = len(table)
    np.testing.assert_array_equal(table[np.array([0, rows - 1])], X[[0, rows - 1]])
    assert len(table[np.array([], int)]) == 0
    for outside in ([rows], [0, rows], [-1] if order is None else [rows + 1]):
        with pytest.raises(IndexError):
            table[np.array(outside)]


def spoiled(j: int, value: float) -> np.ndarray:
    values = 100 * X
    values[17, j] = value
    values[3, j] = SECRET
    return values


def problems() -> dict[str, pa.Table]:
    def table(numbers: np.ndarray = X, **more: object) -> pa.Table:
        return pa.table({"id": IDS, **{f"c{j}": numbers[:, j] for j in range(D)}, **more})

    gaps = [None if row == 5 else float(row) for row in range(N)]
    return {
        "infinite": table(spoiled(1, -np.inf)),
        "constant": table(np.full((N, D), SECRET)),
        "empty column": table(c9=pa.nulls(N)),
        "empty typed column": table(c9=pa.array([None] * N, pa.float64())),
        "no columns": pa.table({"id": IDS}),
        "no rows": table().slice(0, 0),
        "no ids": table().drop_columns(["id"]),
        "ids twice": table().set_column(0, "id", pa.array([*IDS[:-2], "p1", "p2"][:N])),
        "an id is missing": table().set_column(0, "id", pa.array([None, *IDS[1:]])),
        "an id is no id": table().set_column(0, "id", pa.array(np.arange(N) + 0.5)),
        "a label is missing": table(y=gaps),
        "a label is not finite": table(y=[np.inf, *range(1, N)]),
        "a list as column": table(c9=[[1.0]] * N),
    }


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("problem", problems())
def test_errors_are_those_of_a_table_in_memory(tmp_path: Path, problem: str) -> None:
    path = tmp_path / "t.parquet"
    parquet.write_table(problems()[problem], path)
    with pytest.raises(errors.DataError) as expected:
        read_party("shop", path)
    with pytest.raises(errors.DataError) as caught:
        store_table("shop", path, tmp_path / "t.table")
    assert (type(caught.value), str(caught.value)) == (type(expected.value), str(expected.value))
    assert str(SECRET) not in str(caught.value)
    assert os.listdir(tmp_path) == ["t.parquet"]


DAYS = np.datetime64("2020-02-27") + GENERATOR.integers(0, 700, N)
TOWNS = [None if row % 31 == 0 else f"town {row % 7}" for row in range(N)]
MIXED: dict[str, pa.Array] = {
    "whole": pa.array(GENERATOR.integers(0, 4, N)),
    "gaps": pa.array([None if row % 9 == 5 else float(X[row, 0]) for row in range(N)]),
    "one gap": pa.array([np.nan if row == 5 else float(X[row, 1]) for row in range(N)]),
    "flag": pa.array([None, *(X[1:, 2] > 0).tolist()]),
    "town": pa.array(TOWNS),
    "code": pa.array([f"{row % 5:02d}" for row in range(N)]).dictionary_encode(),
    "day": pa.array(DAYS),
    "share": pa.array([f"{row % 50}%" for row in range(N)]),
    "heavy": pa.array(np.where(np.arange(N) % 40 == 0, 1e6, X[:, 3])),
    "marked": pa.array([f"{-999 if row % 10 == 0 else row}" for row in range(N)]),
}
DECLARED = {"marked": {"type": "number", "missing": ["-999"]}, "whole": "category"}


def write_mixed(path: Path) -> Path:
    """Write a table with every kind of column, as the suffix of the file says."""
    table = pa.table({"id": IDS, **MIXED})
    if path.suffix == ".csv":
        csv.write_csv(table.set_column(6, "code", table["code"].cast(pa.string())), path)
    else:
        parquet.write_table(table, path, row_group_size=64)
    return path


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("declared", [{}, DECLARED], ids=["undeclared", "declared"])
def test_every_kind_of_column_is_the_one_of_a_table_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, declared: dict[str, Any]
) -> None:
    monkeypatch.setattr(preparation, "MAX_COLUMN_BYTES", 8 * N * 3)
    monkeypatch.setattr(external_table, "READ_VALUES", 70)
    monkeypatch.setattr(csv_file, "CSV_BLOCK_BYTES", 2048)
    path, types = write_mixed(tmp_path / f"t.{suffix}"), read_types(declared)
    in_memory = read_party("shop", path, ReadOptions(declared=types))
    stored = store_table("shop", path, tmp_path / "t.table", ReadOptions(declared=types), job=store_job())
    assert (stored.columns, stored.categories, stored.dates) == (
        in_memory.columns,
        in_memory.categories,
        in_memory.dates,
    )
    assert (stored.types, stored.percents, stored.content) == (in_memory.types, in_memory.percents, in_memory.content)
    np.testing.assert_array_equal(stored.X[:], in_memory.X)
    np.testing.assert_array_equal(open_table("shop", tmp_path / "t.table").X[40:90], in_memory.X[40:90])
    for options in ({}, {"clip": 0.02}, {"bins": 4}, {"drop": ["town", "day"]}):
        job = store_job().model_copy(update={"prepare": vfl.Preparation(**options)})
        expected, prepared = (prepare_party(job, party, party.register) for party in (in_memory, stored))
        assert prepared.preparation == expected.preparation
        assert prepared.columns == expected.columns
        rows = GENERATOR.permutation(N)[:50]
        np.testing.assert_array_equal(prepared.X[rows], expected.X[rows])
        np.testing.assert_array_equal(prepared.X[:], expected.X)
    bank = Party("bank", X[:, :2], Y, ids=IDS)
    one, other = (vfl.simulate(store_job(), [bank, party]) for party in (in_memory, stored))
    for name, part in one.parts.items():
        np.testing.assert_array_equal(part.theta, other.parts[name].theta)
    assert one.metrics == other.metrics
    for figures, expected_figures in zip(describe(stored).columns, describe(in_memory).columns, strict=True):
        assert replace(figures, vif=None) == replace(expected_figures, vif=None)
        assert (figures.vif or 0) == pytest.approx(expected_figures.vif or 0, rel=1e-9)


def test_stored_and_loaded_tables_refuse_the_same_values(tmp_path: Path) -> None:
    wrong = ReadOptions(declared=read_types({"town": "number", "share": "date"}))
    for suffix in ("csv", "parquet"):
        path = write_mixed(tmp_path / f"t.{suffix}")
        with raises_code(errors.TableError, "SVFL-TABLE-TYPE") as expected:
            read_party("shop", path, wrong)
        with raises_code(errors.TableError, "SVFL-TABLE-TYPE") as caught:
            store_table("shop", path, tmp_path / "t.table", wrong)
        assert str(caught.value) == str(expected.value)
    assert sorted(os.listdir(tmp_path)) == ["t.csv", "t.parquet"]


def test_weights_of_evidence_need_a_table_in_memory(tmp_path: Path) -> None:
    stored = store_table("shop", write_mixed(tmp_path / "t.csv"), tmp_path / "t.table")
    job = store_job().model_copy(update={"prepare": vfl.Preparation(woe={})})
    with raises_code(errors.TableError, "SVFL-TABLE-ON-DISK"):
        prepare_party(job, stored, stored.register)


def test_a_column_that_does_not_vary_is_noticed_alike(tmp_path: Path) -> None:
    values = X.copy()
    values[:, 2] = SECRET
    parquet.write_table(pa.table({"id": IDS, **{f"c{j}": values[:, j] for j in range(D)}}), tmp_path / "t.parquet")
    with pytest.warns(errors.DataNotice) as expected:
        party = read_party("shop", tmp_path / "t.parquet")
    with pytest.warns(errors.DataNotice) as notices:
        stored = store_table("shop", tmp_path / "t.parquet", tmp_path / "t.table")
    assert [str(notice.message) for notice in notices] == [str(notice.message) for notice in expected]
    assert stored.constant == open_table("shop", tmp_path / "t.table").constant == party.constant == ["c2"]


@pytest.mark.parametrize("content", [None, b"", b"PAR1 and no more"])
def test_what_is_no_parquet_is_refused_alike(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "t.parquet"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(errors.TableError) as expected:
        read_party("shop", path)
    with pytest.raises(errors.TableError) as caught:
        store_table("shop", path, tmp_path / "t.table")
    assert str(caught.value) == str(expected.value)


@pytest.mark.parametrize("rows", [[0, 0], [N], [-1], [], [[1]], [0.5]], ids=str)
def test_rows_that_do_not_fit_are_refused(tmp_path: Path, rows: list[object]) -> None:
    with pytest.raises(errors.TableError) as caught:
        store_table("shop", write(tmp_path / "t.parquet"), tmp_path / "t.table", rows=np.array(rows))
    assert caught.value.code in {"SVFL-TABLE-CHANGED", "SVFL-FILE-DAMAGED"}
    assert os.listdir(tmp_path) == ["t.parquet"]


def test_a_table_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, table = write(tmp_path / "t.parquet"), tmp_path / "t.table"
    store_table("shop", path, table)
    before = table.read_bytes()

    def full(self: object, file: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store._Buckets, "empty_into", full)
    with raises_code(errors.DataError, "SVFL-FILE-UNUSABLE"):
        store_table("shop", path, table, rows=DRAWN_ROWS)
    assert table.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["t.parquet", "t.table"]


def test_what_is_no_whole_table_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "t.table"
    with raises_code(errors.DataError, "SVFL-FILE-UNUSABLE"):
        open_table("shop", table)
    stored = store_table("shop", write(tmp_path / "t.parquet"), table, job=store_job())
    intact = table.read_bytes()
    for content in (b"", intact[:-1], intact[:40], intact[:600], intact + b"\0", b"x" + intact[1:]):
        table.write_bytes(content)
        with raises_code(errors.DataError, "SVFL-TABLE-CHANGED"):
            open_table("shop", table)
    os.truncate(table, 5000)
    with raises_code(errors.TableError, "SVFL-TABLE-CHANGED"):
        stored.X[:]


def test_a_flipped_bit_is_found_and_the_table_stored_again(tmp_path: Path) -> None:
    """In every part of the file: its description, labels, positions, ids and rows."""
    table, source = tmp_path / "t.table", write(tmp_path / "t.parquet", labels=True)
    before = store_table("bank", source, table, job=store_job()).X[:]
    intact = table.read_bytes()
    for bit in np.linspace(0, 8 * len(intact) - 1, 300).astype(int).tolist():
        changed = bytearray(intact)
        changed[bit // 8] ^= 1 << bit % 8
        table.write_bytes(changed)
        with raises_code(errors.DataError, "SVFL-TABLE-CHANGED"):
            open_table("bank", table)
    np.testing.assert_array_equal(store_table("bank", source, table, job=store_job()).X[:], before)
    assert table.read_bytes() == intact


@given(
    rows=st.integers(1, 200),
    columns=st.integers(1, 5),
    chunk=st.integers(1, 300),
    scale=st.sampled_from([1e-3, 1.0, 1e6]),
    shift=st.sampled_from([0.0, -7.0, 1e4]),
)
def test_moments_are_numpy_s(rows: int, columns: int, chunk: int, scale: float, shift: float) -> None:
    generator = np.random.default_rng([rows, columns, chunk])
    X = generator.normal(size=(rows + 3, columns)) * scale + shift * scale
    X[:, 0] = 0.1
    order = generator.permutation(rows + 3)[:rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("securevfl.base.chunked_matrix.BLOCK_NUMBERS", chunk)
        mean, deviation = moments(X, order)[:2]
    np.testing.assert_allclose(mean, X[order].mean(axis=0), rtol=1e-12, atol=1e-12 * scale)
    np.testing.assert_allclose(deviation[1:], X[order].std(axis=0)[1:], rtol=1e-12 if rows > 3 else 1e-9, atol=1e-12)
    assert deviation[0] == 0.0


PROGRAM = """
import sys
from pathlib import Path
from securevfl.base import chunked_matrix
from securevfl.data import location_scale, store, table_source

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])

table_source.BATCH_BYTES, store.BUCKET_BYTES, chunked_matrix.BLOCK = 4 << 20, 8 << 20, 1 << 18
before = peak()
party = store.store_table("shop", sys.argv[1], sys.argv[2])
location_scale.moments(party.X, store.np.random.default_rng(0).permutation(len(party)))
print(peak() - before)
"""


def grown(folder: Path, rows: int) -> int:
    """Bytes of memory that a process takes to store a table of 100 columns in one row group, and to read it all."""
    path, X = folder / "t.parquet", np.random.default_rng(0).normal(size=(rows, 100))
    columns = {"id": np.arange(rows), **{f"c{j}": X[:, j] for j in range(100)}}
    parquet.write_table(pa.table(columns), path, row_group_size=rows, use_dictionary=False, data_page_size=1 << 16)
    command = [sys.executable, "-c", PROGRAM, str(path), str(folder / "t.table")]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) << 10


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_hardly_grows_with_the_table(tmp_path: Path) -> None:
    assert grown(tmp_path, 160_000) - grown(tmp_path, 40_000) < 30 << 20  # of 96 MB more


def test_a_temporary_copy_needs_no_writable_folder(tmp_path: Path) -> None:
    path = write_mixed(tmp_path / "t.csv")
    expected = copy_to_temporary_table("shop", path)
    with path.open("rb") as file:
        linked = Path(f"/proc/self/fd/{file.fileno()}")  # nobody can write to this folder
        stored = copy_to_temporary_table("shop", linked)
    np.testing.assert_array_equal(stored.X[:], expected.X[:])
    assert not list(Path(tempfile.gettempdir()).glob(f".{linked.name}.table.*"))
