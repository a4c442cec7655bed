"""Large Parquet files are read from disk by default: parties and models are the same, and no file is left behind."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from builders import raises_code, write_table
from pyarrow import csv, parquet
from typer.testing import CliRunner

import securevfl as vfl
from securevfl import errors
from securevfl.cli.main import app
from securevfl.data import load, store
from securevfl.data.load import delete_table_copy, read_aligned, read_parties
from securevfl.data.party import Party
from securevfl.data.read_options import ReadOptions
from securevfl.data.readers import read_ids, read_party
from securevfl.data.row_order import write_rows
from securevfl.data.store import StoredParty, copy_to_temporary_table, store_table, table_path
from securevfl.errors import LabelError, TableError
from securevfl.models.metrics import area_under_curve
from tests.forked import run_forked

N = 240
GENERATOR = np.random.default_rng(3)
X = GENERATOR.normal(size=(N, 5)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
ORDER = GENERATOR.permutation(N)


def batches_job(batch: int = 32) -> vfl.Job:
    return vfl.Job(
        model=vfl.Logistic(),
        optimizer=vfl.FedBCD(lr=0.1),
        protocol=vfl.Protocol(residual="open"),
        batch_size=batch,
        epochs=2,
        test_fraction=0.2,
        accepts=["columns"],
    )


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """The other party's rows are shuffled, and each lacks rows."""
    bank = {"id": np.arange(N - 3), "y": Y[:-3], "a": X[:-3, 0], "b": X[:-3, 1]}
    rows = ORDER[ORDER > 4]
    shop = {"id": rows.astype(str), "c": X[rows, 2], "d": X[rows, 3], "e": X[rows, 4]}
    parquet.write_table(pa.table(bank), tmp_path / "bank.parquet")
    parquet.write_table(pa.table(shop), tmp_path / "shop.parquet")
    return {name: tmp_path / f"{name}.parquet" for name in ("bank", "shop")}


def test_the_model_is_the_one_of_tables_in_memory(files: dict[str, Path]) -> None:
    in_memory, lacked = read_parties(files)
    stored, missing = read_parties(files, job=batches_job(), max_in_memory_bytes=0)
    assert missing == lacked
    assert sorted(lacked["bank"], key=int) == [str(row) for row in range(N - 3, N)]
    assert lacked["shop"] == ["0", "1", "2", "3", "4"]
    assert {type(party) for party in in_memory} == {Party}
    assert {type(party) for party in stored} == {StoredParty}
    one, other = vfl.simulate(batches_job(), in_memory), vfl.simulate(batches_job(), stored)
    for name, part in one.parts.items():
        np.testing.assert_array_equal(part.theta, other.parts[name].theta)
    assert one.metrics == other.metrics
    assert sorted(os.listdir(files["bank"].parent)) == ["bank.parquet", "shop.parquet"]


def test_only_what_is_large_is_copied(files: dict[str, Path], tmp_path: Path) -> None:
    size = (N - 3) * 4 * 8  # the bank's, with ids and labels
    bank, shop = read_parties(files, job=batches_job(), max_in_memory_bytes=size)[0]
    assert (type(bank), type(shop)) == (Party, Party)
    bank, shop = read_parties(files, job=batches_job(), max_in_memory_bytes=size - 1)[0]
    assert (type(bank), type(shop)) == (StoredParty, Party)
    csv.write_csv(parquet.read_table(files["shop"]), tmp_path / "shop.csv")
    csv_files = files | {"shop": tmp_path / "shop.csv"}
    bank, shop = read_parties(csv_files, job=batches_job(), max_in_memory_bytes=0)[0]
    assert (type(bank), type(shop)) == (StoredParty, StoredParty)
    assert not load.is_large(tmp_path / "shop.npz", max_in_memory_bytes=0)


def test_a_copy_serves_again_while_it_fits(files: dict[str, Path]) -> None:
    data = files["shop"]
    copy = table_path(data)

    def read(chosen_job: vfl.Job, **names: Any) -> tuple[StoredParty, int]:
        party = read_aligned("shop", data, chosen_job, ReadOptions(**names), max_in_memory_bytes=0)
        assert isinstance(party, StoredParty)
        return party, copy.stat().st_ino

    first, inode = read(batches_job())
    again, same = read(batches_job())
    assert same == inode
    np.testing.assert_array_equal(again.X[:], first.X[:])
    assert read(batches_job(), label_column="none")[1] != inode
    _, inode = read(batches_job())
    assert read(batches_job(batch=16))[1] != inode
    _, inode = read(batches_job())
    write_rows(data, np.arange(20)[::-1])
    fewer, other = read(batches_job())
    assert (len(fewer), other != inode) == (20, True)
    np.testing.assert_array_equal(fewer.X[:], read_party("shop", data).X[19::-1])
    content = copy.read_bytes()
    copy.write_bytes(content[:-1])
    read(batches_job())
    assert copy.read_bytes() == content
    parquet.write_table(parquet.read_table(data).slice(0, 50), data)
    write_rows(data, np.arange(50))
    changed, _ = read(batches_job())
    assert len(changed) == 50
    delete_table_copy(changed, data)
    assert not copy.exists()


def test_what_is_not_ours_stays(files: dict[str, Path]) -> None:
    stored_party = read_aligned("shop", files["shop"], batches_job(), ReadOptions(id_column="id", label_column="y"))
    table_path(files["shop"]).write_text("a user's own")
    delete_table_copy(stored_party, files["shop"])
    assert table_path(files["shop"]).exists()


def test_a_borrowed_table_has_no_name(files: dict[str, Path]) -> None:
    reported = []
    party = copy_to_temporary_table("shop", files["shop"], on_progress=lambda *counts: reported.append(counts))
    assert sorted(os.listdir(files["shop"].parent)) == ["bank.parquet", "shop.parquet"]
    np.testing.assert_array_equal(party.X[:], read_party("shop", files["shop"]).X)
    assert reported[-1] == (len(party), len(party))


def test_the_room_that_lacks_is_told(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(files["shop"].parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with raises_code(errors.DataError, "SVFL-FILE-NO-SPACE"):
        store_table("shop", files["shop"], table_path(files["shop"]))
    assert sorted(os.listdir(files["shop"].parent)) == ["bank.parquet", "shop.parquet"]


KILLED = """
import os, sys
from securevfl.data import store
store._Buckets.empty_into = lambda *_: os.kill(os.getpid(), 9)
store.copy_to_temporary_table("shop", sys.argv[1])
"""


def test_only_drafts_of_dead_processes_are_removed(files: dict[str, Path]) -> None:
    data = files["shop"]
    killed = run_forked([sys.executable, "-c", KILLED, str(data)], check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = data.parent.glob(".*")
    assert list(left.iterdir())
    with store._draft_folder(table_path(data)) as folder:
        store_table("shop", data, table_path(data))
        assert list(data.parent.glob(".*")) == [folder]


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_ids_alone(tmp_path: Path, suffix: str) -> None:
    ids, path = GENERATOR.permutation(900)[:N], tmp_path / f"t{suffix}"
    table = pa.table({"text": ["1,000"] * N, "id": ids, "a": X[:, 0], "none": pa.nulls(N)})
    if suffix == ".csv":
        csv.write_csv(table, path)
    elif suffix == ".parquet":
        parquet.write_table(table, path)
    else:
        np.savez(path, ids=ids)
    assert read_ids(path).astype(str).tolist() == ids.astype(str).tolist()
    with pytest.raises(errors.DataError):
        read_party("shop", path)


@pytest.mark.parametrize(
    ("name", "content", "kind", "says"),
    [
        ("t.csv", b"key,a\n1,2\n", errors.IdError, "SVFL-ID-COLUMN"),
        ("t.csv", b"id,a\n1,2\n,3\n", errors.IdError, "SVFL-ID-MISSING"),
        ("t.csv", b"id,a\n1,2\n2,3,4\n", errors.TableError, "SVFL-TABLE-RAGGED"),
        ("t.csv", b"id,a\n", errors.TableError, "SVFL-TABLE-EMPTY"),
        ("t.parquet", b"PAR1", errors.TableError, "SVFL-TABLE-UNREADABLE"),
        ("t.npz", b"", errors.TableError, "SVFL-TABLE-UNREADABLE"),
        ("t.xlsx", b"", errors.TableError, "SVFL-TABLE-UNREADABLE"),
    ],
)
def test_ids_that_are_not_there(tmp_path: Path, name: str, content: bytes, kind: type[Exception], says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with raises_code(kind, says):
        read_ids(tmp_path / name)
    np.savez(tmp_path / "none.npz", X=X)
    with raises_code(errors.IdError, "SVFL-ID-MISSING"):
        read_ids(tmp_path / "none.npz")


@pytest.mark.parametrize("reader", ["csv", "parquet", "frame", "npz"])
@pytest.mark.parametrize("duplicates", ["refuse", "last"])
def test_errors_about_labels_name_the_row_of_the_file(reader: str, duplicates: Any, tmp_path: Path) -> None:
    """The other party lacks the first ids and has the others in another order; one id occurs twice."""
    n, bad = 60, 41
    ids = [f"k{k}" for k in range(n)]
    if duplicates == "last":
        ids[3] = ids[20]
    y = [f"{k}.5" for k in range(n)]
    y[bad] = "unknown"
    columns = {"id": ids, "a": [k * 0.5 for k in range(n)], "y": y}
    other = {"id": ids[:9:-1], "b": [k * 0.25 for k in range(n - 10)]}
    if duplicates == "last":
        other["id"] = [f"k{k}" for k in range(n - 1, 9, -1)]
    job = vfl.Job(model=vfl.Square(), test_fraction=0.25)
    if reader == "frame":
        index, shop_index = columns.pop("id"), other.pop("id")
        parties: list[vfl.Party] = vfl.align([
            vfl.Party("bank", {"a": columns["a"]}, columns["y"], ids=index, duplicates=duplicates),
            vfl.Party("shop", other, ids=shop_index),
        ])  # fmt: skip
    else:
        paths = {"bank": tmp_path / f"bank.{reader}", "shop": tmp_path / "shop.csv"}
        if reader == "npz":
            np.savez(paths["bank"], X=np.array(columns["a"])[:, None], y=np.array(y), ids=np.array(ids))
        else:
            write_table(paths["bank"], columns)
        write_table(paths["shop"], other)
        parties, _ = read_parties(paths, ReadOptions(duplicates=duplicates))
    with raises_code(LabelError, "SVFL-LABEL-CLASSES", row=bad + 1, texts=1) as caught:
        vfl.simulate(job, parties)
    assert f"first in row {bad + 1} of the table of bank" in str(caught.value)


@pytest.mark.parametrize("reader", ["csv", "parquet", "frame", "array"])
def test_all_bad_columns_are_in_one_error(reader: str, tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        "id": [f"k{k}" for k in range(60)],
        "good": [str(k) + ".5" for k in range(60)],
        "late": [f"20{k:02}-01-02" for k in range(10, 69)] + ["soon"],
        "share": [f"{k} %" for k in range(59)] + ["half"],
    }
    with raises_code(TableError, "SVFL-TABLE-TYPE", columns=["late", "share"]) as caught:
        if reader in ("csv", "parquet"):
            read_party("shop", write_table(tmp_path / f"t.{reader}", columns))
        elif reader == "frame":
            vfl.Party("shop", {name: columns[name] for name in ("good", "late", "share")}, ids=columns["id"])
        else:
            table = np.array([columns[name] for name in ("good", "late", "share")], object).T
            vfl.Party("shop", table, columns=["good", "late", "share"], ids=columns["id"])
    assert str(caught.value).count("first in row 60") == 2
    assert str(caught.value).count("party shop: ") in (0, 2)


@pytest.mark.parametrize("reader", ["csv", "parquet"])
@pytest.mark.parametrize("duplicates", ["refuse", "first"])
def test_describe_reports_rows_without_a_label(reader: str, duplicates: Any, tmp_path: Path) -> None:
    n = 200
    labels: list[int | None] = [None if k % 10 == 0 else k % 3 % 2 for k in range(n)]
    columns: dict[str, Any] = {"id": [f"k{k}" for k in range(n)], "x": np.arange(n) * 0.5, "y": pa.array(labels)}
    if duplicates == "first":
        columns["id"][7] = "k6"
    path = tmp_path / f"t.{reader}"
    arrow = pa.table({name: pa.array(values) for name, values in columns.items()})
    (parquet.write_table if reader == "parquet" else csv.write_csv)(arrow, path)
    words = ["describe", "--data", str(path), "--duplicates", duplicates, "--json", str(tmp_path / "d.json")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    written = json.loads((tmp_path / "d.json").read_text())
    rows = [k for k in range(n) if not (duplicates == "first" and k == 7)]
    assert "20 rows have no label" in done.output
    assert (written["unlabelled"], written["rows"]) == (20, len(rows))
    known = [k for k in rows if labels[k] is not None]
    positive = np.array([labels[k] == 1 for k in known])
    assert written["positive"] == {"class": "1", "share": pytest.approx(positive.mean())}
    area = area_under_curve(positive, np.array([k * 0.5 for k in known]))
    assert written["columns"][0]["auc"] == pytest.approx(area)
    assert written["columns"][0]["quartiles"][4] == (n - 1) * 0.5
    with raises_code(LabelError, "SVFL-LABEL-MISSING", missing=20):
        read_party("bank", path, ReadOptions(duplicates=duplicates))


def test_describe_works_without_any_label(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,x,y\n" + "".join(f"k{k},{k},\n" for k in range(30)))
    done = CliRunner().invoke(app, ["describe", "--data", str(tmp_path / "t.csv")])
    assert done.exit_code == 0, done.output
    assert "30 rows have no label" in done.output
