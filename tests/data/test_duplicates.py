"""Several rows of one id are refused, or the first or last is used, for every reader and use."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from builders import make_job, raises_code, random_parties, write_tables
from typer.testing import CliRunner

import securevfl as vfl
from securevfl.cli.main import app
from securevfl.cli.prediction_output import predict_files
from securevfl.data.duplicates import Duplicates
from securevfl.data.load import read_aligned, read_in_order, read_parties
from securevfl.data.read_options import ReadOptions
from securevfl.data.readers import read_party, read_table, read_unique_ids
from securevfl.data.row_order import write_rows
from securevfl.data.store import StoredParty, copy_to_temporary_table
from securevfl.errors import ConfigError, DataNotice, IdError, RangeError
from securevfl.training.new_rows import rows_of_file

N = 120
GENERATOR = np.random.default_rng(8)
IDS = [f"k{number}" for number in [*range(N), 5, 9, 5, N - 1]]  # k5 has three rows, k9 and the last one have two
ROWS = len(IDS)
COLUMNS: dict[str, Any] = {
    "a": GENERATOR.normal(size=ROWS).tolist(),
    "town": GENERATOR.choice(["Bonn", "Jena"], ROWS).tolist(),
}
Y = [int(value > 0) for value in COLUMNS["a"]]
REMAINING = {
    "first": list(range(N)),
    "last": [row for row in range(ROWS) if row not in (5, 9, N - 1, N)],
}
NOTICE_NUMBERS = ["3", "4", str(ROWS)]  # ids with several rows, rows left out, all rows
OPEN_JOB = vfl.Job(
    model=vfl.Logistic(l2=1e-3),
    optimizer=vfl.FedBCD(lr=0.3),
    protocol=vfl.Protocol(residual="open"),
    batch_size=30,
    epochs=1,
    accepts=("columns",),
)


def write(folder: Path, suffix: str, columns: dict[str, Any]) -> Path:
    path, table = folder / f"t.{suffix}", pa.table({"id": IDS, "y": Y} | columns)
    if suffix == "csv":
        pyarrow.csv.write_csv(table, path)
    elif suffix == "parquet":
        pq.write_table(table, path)
    else:
        np.savez(path, X=np.column_stack(list(columns.values())), y=np.array(Y), ids=np.array(IDS))
    return path


FRAMES: dict[str, Callable[[], Any]] = {
    "pandas": lambda: pd.DataFrame(COLUMNS),
    "polars": lambda: pl.DataFrame(COLUMNS),
    "lazy": lambda: pl.LazyFrame(COLUMNS),
    "arrow": lambda: pa.table(COLUMNS),
    "dict": lambda: COLUMNS,
    "array": lambda: np.array(COLUMNS["a"])[:, None],
}


def read(reader: str, folder: Path, duplicates: Any) -> vfl.Party:
    if reader in FRAMES:
        return vfl.Party("bank", FRAMES[reader](), Y, ids=IDS, duplicates=duplicates)
    if reader == "pandas index":
        table = pd.DataFrame(COLUMNS, index=IDS)
        return vfl.Party("bank", table, pd.Series(Y, index=IDS), duplicates=duplicates)
    numbers = {"a": COLUMNS["a"], "b": list(range(ROWS))}
    return read_party(
        "bank", write(folder, reader, numbers if reader == "npz" else COLUMNS), ReadOptions(duplicates=duplicates)
    )


@pytest.mark.parametrize("reader", [*FRAMES, "pandas index", "csv", "parquet", "npz"])
def test_every_reader_takes_one_row_of_each_id(reader: str, tmp_path: Path) -> None:
    with raises_code(IdError, "SVFL-ID-DUPLICATE", duplicates=3, rows=(6, N + 1)) as caught:
        read(reader, tmp_path, "refuse")
    assert "--duplicates" in str(caught.value)
    for duplicates, rows in REMAINING.items():
        with pytest.warns(DataNotice) as notices:
            party = read(reader, tmp_path, duplicates)
        (notice,) = [str(item.message) for item in notices if f"Only the {duplicates} row" in str(item.message)]
        assert re.findall(r"(?<!\S)\d+", notice) == NOTICE_NUMBERS
        assert party.ids is not None
        assert party.ids.tolist() == [IDS[row] for row in rows]
        assert party.labels.tolist() == [Y[row] for row in rows]
        np.testing.assert_array_equal(party.X[:, 0], np.array(COLUMNS["a"])[rows])
    with raises_code(ConfigError, "SVFL-JOB-OPTION"):
        read("pandas", tmp_path, "newest")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("duplicates", ["first", "last"])
@pytest.mark.filterwarnings("ignore::securevfl.errors.DataNotice")
def test_large_files_give_the_party_of_small_ones(suffix: str, duplicates: Duplicates, tmp_path: Path) -> None:
    paths = {name: write(tmp_path / name, suffix, COLUMNS) for name in ("bank", "shop") if not _mkdir(tmp_path / name)}
    table = pq.read_table(paths["shop"]) if suffix == "parquet" else pyarrow.csv.read_csv(paths["shop"])
    table = table.drop_columns("y").slice(3)
    (pq.write_table if suffix == "parquet" else pyarrow.csv.write_csv)(table, paths["shop"])
    options = ReadOptions(duplicates=duplicates)
    in_memory, lacked = read_parties(paths, options)
    with raises_code(IdError, "SVFL-ID-DUPLICATE"):
        read_parties(paths, job=OPEN_JOB, max_in_memory_bytes=0)
    stored, missing = read_parties(paths, options, job=OPEN_JOB, max_in_memory_bytes=0)
    assert missing == lacked
    for one, other in zip(in_memory, stored, strict=True):
        assert isinstance(other, StoredParty)
        assert one.digest == other.digest
        np.testing.assert_array_equal(one.X, other.X[:])
    runs = [vfl.simulate(OPEN_JOB, parties) for parties in (in_memory, stored)]
    assert runs[0].metrics == runs[1].metrics


def _mkdir(folder: Path) -> None:
    folder.mkdir()


@pytest.mark.parametrize("duplicates", [*REMAINING, "refuse"])
@pytest.mark.parametrize("first", ["bank", "shop"])
@pytest.mark.filterwarnings("ignore::securevfl.errors.DataNotice")
def test_an_error_names_the_row_of_the_first_file(first: str, duplicates: Duplicates, tmp_path: Path) -> None:
    """The files have the rows in other orders, the first one has several rows of some ids, and the other lacks some."""
    parties = random_parties(rows=N, ids=True)
    for party in parties:
        party.X[:, 0] *= 1e-3
    run = vfl.simulate(make_job(optimizer={"name": "fedbcd", "lr": 20.0}), parties)  # weights above 1
    orders = {"bank": np.arange(N), "shop": np.arange(N)[::-1]}
    if duplicates != "refuse":
        orders[first] = np.concatenate([orders[first][:20], orders[first]])
    (other,) = set(orders) - {first}
    orders[other] = orders[other][orders[other] % 3 != 1]
    tables = [party.take(orders[party.name]) for party in parties]
    far = 77
    for table in tables:  # each party's output is finite, and their sum is not
        part = run.parts[table.name]
        table.X[table.ids == far, 0] = 1.2e308 * part.scaling.deviation[0] / part.theta[0, 0]
    files = write_tables(tmp_path, tables)
    options = {name: ReadOptions(duplicates=duplicates if name == first else "refuse") for name in files}
    (row,) = np.flatnonzero(orders[first] == far)
    with raises_code(RangeError, "SVFL-TRAINING-RANGE", row=row + 1):
        predict_files(
            run, {name: files[name] for name in sorted(files, key=first.__ne__)}, tmp_path / "p", options=options
        )


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.filterwarnings("ignore::securevfl.errors.DataNotice")
def test_the_row_order_of_an_alignment_names_rows_of_the_file(suffix: str, tmp_path: Path) -> None:
    path, options = write(tmp_path, suffix, COLUMNS), ReadOptions(duplicates="last")
    ids, unique = read_unique_ids(path, options)
    assert ids.tolist() == [IDS[row] for row in REMAINING["last"]]
    assert unique is not None
    common = np.arange(len(ids))[::-2]  # as an alignment returns them: positions among the ids that it received
    write_rows(path, unique.rows[common])
    small = read_in_order("bank", path, options)
    assert small.ids is not None
    assert small.ids.tolist() == ids[common].tolist()
    wrong = ReadOptions(duplicates="first")
    with raises_code(IdError, "SVFL-ID-DUPLICATE", duplicates=2):
        read_in_order("bank", path, wrong)
    large = read_aligned("bank", path, OPEN_JOB, options, max_in_memory_bytes=0)
    np.testing.assert_array_equal(large.X[:], small.X)
    with raises_code(IdError, "SVFL-ID-DUPLICATE", duplicates=2):
        read_aligned("bank", path, OPEN_JOB, wrong, max_in_memory_bytes=0)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.filterwarnings("ignore::securevfl.errors.DataNotice")
def test_rows_to_score_are_one_of_each_id(suffix: str, tmp_path: Path) -> None:
    columns = {"a": COLUMNS["a"], "b": [float(k % 7) for k in range(ROWS)]}
    path = write(tmp_path, suffix, columns)
    lead = read_party("bank", path, ReadOptions(duplicates="first"))
    shop = vfl.Party("shop", GENERATOR.normal(size=(N, 2)), ids=IDS[:N])
    part = vfl.simulate(OPEN_JOB, [lead, shop]).parts["bank"]
    with raises_code(IdError, "SVFL-ID-DUPLICATE"):
        rows_of_file(part, path)
    for duplicates, rows in REMAINING.items():
        new = rows_of_file(part, path, ReadOptions(duplicates=duplicates))  # type: ignore[arg-type]
        ((ids, X),) = new.blocks()
        assert new.count == N
        assert ids == [IDS[row] for row in rows]
        np.testing.assert_array_equal(X[:, 0], np.array(COLUMNS["a"])[rows])
    order = np.array(REMAINING["last"])[::-1]
    write_rows(path, order)
    ((ids, X),) = rows_of_file(part, path, ReadOptions(duplicates="last")).blocks()
    assert ids == [IDS[row] for row in order]
    np.testing.assert_array_equal(X[:, 0], np.array(COLUMNS["a"])[order])
    with raises_code(IdError, "SVFL-ID-DUPLICATE"):
        rows_of_file(part, path, ReadOptions(duplicates="first"))


@pytest.mark.parametrize("duplicates", ["first", "last"])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("id_column", ["id,", "id,town"])
def test_ids_by_the_rule_keep_the_spelling_of_their_row(
    duplicates: Any, suffix: str, id_column: str, tmp_path: Path
) -> None:
    """Each id of the remaining rows has its spelling in the file, in the order of the rows."""
    spellings, towns = [text.upper() if row % 3 else text for row, text in enumerate(IDS)], ["Bonn"] * ROWS
    table = pa.table({"id": spellings, "town": towns, "a": COLUMNS["a"], "y": Y})
    path = tmp_path / f"t.{suffix}"
    pyarrow.csv.write_csv(table, path) if suffix == "csv" else pq.write_table(table, path)
    contents = read_table(path, ReadOptions(id_column=id_column, duplicates=duplicates))
    assert contents.written is not None
    assert len(set(contents.ids.tolist())) == len(contents.ids) == N
    expected = [spellings[row] for row in REMAINING[duplicates]]
    assert list(contents.written) == (expected if id_column == "id," else [(text, "Bonn") for text in expected])


def test_the_copy_of_a_table_counts_only_the_rows_that_remain(tmp_path: Path) -> None:
    constant = {"a": COLUMNS["a"], "c": [1.0] * N + [2.0] * (ROWS - N)}
    path = write(tmp_path, "csv", constant)
    options = ReadOptions(duplicates="first")
    with pytest.warns(DataNotice):
        stored = copy_to_temporary_table("bank", path, options)
    with pytest.warns(DataNotice):
        in_memory = read_party("bank", path, options)
    assert stored.constant == in_memory.constant == ["c"]


def test_the_job_file_and_the_command_state_it(tmp_path: Path) -> None:
    (tmp_path / "bank").mkdir()
    bank = write(tmp_path / "bank", "csv", COLUMNS)
    shop = pa.table({"id": IDS[:N], "s": GENERATOR.normal(size=N)})
    pyarrow.csv.write_csv(shop, tmp_path / "shop.csv")
    lines = [
        'model = "logistic"',
        'protocol = { residual = "open" }',
        'accepts = ["columns"]',
        "batch_size = 30",
        "epochs = 1",
        'optimizer = { name = "fedbcd", lr = 0.3 }',
    ]
    job = tmp_path / "job.toml"
    data = ["--data", f"bank={bank}", "--data", f"shop={tmp_path / 'shop.csv'}"]
    auc = {}
    for name, key, option in [
        ("key", 'duplicates = "last"', []),
        ("table", 'duplicates = { bank = "last" }', []),
        ("option", "", ["--duplicates", "bank=last"]),
        ("all", 'duplicates = "first"', ["--duplicates", "last"]),
        ("first", 'duplicates = "first"', []),
    ]:
        job.write_text("\n".join([*lines, key]))
        report = tmp_path / "report.json"
        done = CliRunner().invoke(app, ["train", str(job), *data, *option, "--json", str(report)])
        assert done.exit_code == 0, done.output
        assert "Only the" in done.stderr
        auc[name] = json.loads(report.read_text())["metrics"]["log_loss"]
    assert auc["key"] == auc["table"] == auc["option"] == auc["all"] != auc["first"]
    for key, option in (("", []), ('duplicates = "lost"', []), ("", ["--duplicates", "bank=lost"])):
        job.write_text("\n".join([*lines, key]))
        done = CliRunner().invoke(app, ["train", str(job), *data, *option])
        assert done.exit_code == 2
        assert "duplicates" in done.stderr
    done = CliRunner().invoke(app, ["describe", "--data", str(bank), "--duplicates", "last"])
    assert done.exit_code == 0, done.output
    assert f"{N}" in done.output


def test_tables_without_repeated_ids_are_read_alike(tmp_path: Path) -> None:
    table = {name: values[:N] for name, values in COLUMNS.items()}
    for duplicates in get_args(Duplicates):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(vfl.Party("bank", {"a": table["a"]}, ids=IDS[:N], duplicates=duplicates)) == N
    pyarrow.csv.write_csv(pa.table({"id": IDS[:N], "a": table["a"]}), tmp_path / "t.csv")
    assert read_table(tmp_path / "t.csv", ReadOptions(duplicates="last")).unique is None
