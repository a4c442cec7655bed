"""A column has the same type, and so the same model, for all readers, formats of values and uses of rows."""

from __future__ import annotations

import datetime
import json
import math
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from builders import raises_code
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import securevfl as vfl
from securevfl import errors
from securevfl.cli.main import app
from securevfl.data.column_types import read_types
from securevfl.data.columns import Columns, columns_of
from securevfl.data.read_options import ReadOptions
from securevfl.data.readers import read_party, read_table
from securevfl.data.store import copy_to_temporary_table
from securevfl.data.text_types import CURRENCY_SIGNS
from securevfl.job import Job, column_types_of
from securevfl.organisations.http_requests import ScoreRequests
from securevfl.training.model_part import ModelPart
from securevfl.training.new_rows import rows_of_file

N = 300
GENERATOR = np.random.default_rng(3)
CODES = GENERATOR.integers(100, 108, N)
TEXTS = [f"B{code}" for code in CODES]
NUMBERS = GENERATOR.normal(size=N).round(4)
Y = (np.isin(CODES, [101, 103, 106]) ^ (GENERATOR.uniform(size=N) < 0.1)).astype(int)
IDS = [f"c{k:04}" for k in range(N)]
JOB = Job(
    model=vfl.Logistic(l2=1e-3),
    optimizer=vfl.FedBCD(lr=0.5),
    protocol=vfl.Protocol(residual="open"),
    batch_size=50,
    epochs=20,
    accepts=("columns",),
    test_fraction=0.3,
)


def table(branch: Any, folder: Path, kind: str) -> Any:
    """Return a table of one reader with a column of branches."""
    columns = {"branch": branch, "n": NUMBERS}
    if kind == "csv":
        path = folder / "t.csv"
        rows = zip(IDS, [*branch], NUMBERS.tolist(), strict=True)
        path.write_text("id,branch,n\n" + "".join(f"{i},{'' if b is None else b},{n}\n" for i, b, n in rows))
        return path
    if kind == "parquet":
        arrays = {
            name: values if isinstance(values, pa.Array) else pa.array(values) for name, values in columns.items()
        }
        pq.write_table(pa.table({"id": IDS} | arrays), folder / "t.parquet")
        return folder / "t.parquet"
    return columns


WAYS: dict[str, Callable[[Path], tuple[Any, Any]]] = {
    "pandas category of numbers": lambda _: (
        pd.DataFrame({"branch": pd.Series(CODES).astype("category"), "n": NUMBERS}),
        {},
    ),
    "pandas category of texts": lambda _: (
        pd.DataFrame({"branch": pd.Series(CODES.astype(str)).astype("category"), "n": NUMBERS}),
        {},
    ),
    "polars categorical": lambda _: (
        pl.DataFrame({"branch": pl.Series(CODES.astype(str)).cast(pl.Categorical), "n": NUMBERS}),
        {},
    ),
    "polars enum, lazy": lambda _: (
        pl.LazyFrame(
            {"branch": pl.Series(CODES.astype(str)).cast(pl.Enum([*map(str, range(100, 108))])), "n": NUMBERS}
        ),
        {},
    ),
    "arrow dictionary": lambda _: (pa.table({"branch": pa.array(CODES).dictionary_encode(), "n": NUMBERS}), {}),
    "parquet dictionary": lambda folder: (table(pa.array(CODES).dictionary_encode(), folder, "parquet"), {}),
    "parquet texts": lambda folder: (table(CODES.astype(str).tolist(), folder, "parquet"), {}),
    "declared in a csv file": lambda folder: (table(CODES.tolist(), folder, "csv"), {"branch": "category"}),
    "declared in an array": lambda _: (np.column_stack([CODES, NUMBERS]), {"x0": "category"}),
}


def party(source: Any, columns: Any = None, name: str = "shop") -> vfl.Party:
    if isinstance(source, Path):
        return read_party(name, source, ReadOptions(declared=read_types(columns)))
    return vfl.Party(name, source, ids=IDS, columns=columns or None)


def bank() -> vfl.Party:
    return vfl.Party("bank", GENERATOR.normal(size=(N, 2)), Y, ids=IDS)


@pytest.mark.parametrize("way", WAYS)
def test_a_category_is_one_however_it_is_held(way: str, tmp_path: Path) -> None:
    source, declared = WAYS[way](tmp_path)
    shop = party(source, declared)
    first = shop.columns[0]
    assert shop.table.type_of(first).kind == "category"
    assert shop.categories[first] == tuple(map(str, range(100, 108)))
    lead = vfl.Party("bank", np.random.default_rng(0).normal(size=(N, 2)), Y, ids=IDS)
    expected = vfl.simulate(JOB, [lead, party({"branch": TEXTS, "n": NUMBERS})])
    run = vfl.simulate(JOB, [lead, shop])
    assert run.metrics["auc"] == pytest.approx(expected.metrics["auc"], abs=0.005)
    assert run.metrics["auc"] > 0.8
    part = run.parts["shop"]
    new = shop.X.copy()
    new[:, 0] = CODES  # the same codes as numbers, as an application may send them
    names = {first: CODES, shop.columns[1]: NUMBERS}
    np.testing.assert_array_equal(part.table(names), part.table(shop.table))
    part.save(tmp_path / "part.json")
    np.testing.assert_array_equal(ModelPart.load(tmp_path / "part.json").table(names), part.table(shop.table))
    path = table(CODES.tolist(), tmp_path, "csv")
    if first == "branch":
        (block,) = rows_of_file(ModelPart.load(tmp_path / "part.json"), path).blocks()
        np.testing.assert_array_equal(block[1], part.table(shop.table))


READER_NAMES = ("csv", "parquet", "dict", "pandas", "polars", "arrow", "batches", "duckdb", "lazy")


def read(values: list[Any], reader: str, folder: Path, **options: Any) -> Columns:
    """A column `c` of texts, next to numbers, as a reader delivers it."""
    columns = {"c": values, "n": list(range(len(values)))}
    arrow = pa.table(columns)
    if reader in ("csv", "parquet"):
        path = folder / f"t.{reader}"
        if reader == "csv":
            lines = [f'k{k},"{"" if value is None else value}",{k}' for k, value in enumerate(values)]
            path.write_text("\n".join(["id,c,n", *lines, ""]))
        else:
            pq.write_table(arrow.append_column("id", pa.array([f"k{k}" for k in range(len(values))])), path)
        return read_table(path, ReadOptions(**options)).columns
    frames: dict[str, Callable[[], Any]] = {
        "dict": lambda: columns,
        "pandas": lambda: arrow.to_pandas(),
        "polars": lambda: pl.DataFrame(columns),
        "arrow": lambda: arrow,
        "batches": lambda: arrow.to_batches(),
        "duckdb": lambda: duckdb.from_arrow(arrow),
        "lazy": lambda: pl.LazyFrame(columns),
    }
    return columns_of("shop", frames[reader](), **options)


DAYS = [str(datetime.date(2020, 1, 1) + datetime.timedelta(days=k)) for k in range(40)]
FULL_COLUMNS: dict[str, list[str]] = {
    "date": DAYS,
    "percent": [f"{k}.5 %" for k in range(40)],
    "number": [f"{k}.25" for k in range(40)],
    "currency": [f"$ {k},000.50" for k in range(40)],
}


@pytest.mark.parametrize("reader", READER_NAMES)
@pytest.mark.parametrize("kind", FULL_COLUMNS)
def test_every_reader_reads_a_type_and_refuses_what_does_not_fit(kind: str, reader: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {}
    if kind == "currency":
        options = {"declared": read_types({"c": {"type": "currency", "unit": "$", "decimal": "."}})}
    values = FULL_COLUMNS[kind]
    whole = read(values, reader, tmp_path, **options)
    assert whole.type_of("c").kind == kind
    for odd in ("n/k", "0000-00-00", "Xanadu", "(1,234)"):
        spoilt = [*values]
        spoilt[7] = odd
        with raises_code(errors.TableError, "SVFL-TABLE-TYPE", column="c", row=8) as caught:
            read(spoilt, reader, tmp_path, **options)
        assert (odd in str(caught.value)) == (odd in ("n/k", "0000-00-00"))  # marks of missing values are named
        declared = dict(options.get("declared", {}))
        marked = read_types({"c": (declared["c"].model_dump() if declared else {}) | {"missing": (odd,)}})
        missing = read(spoilt, reader, tmp_path, declared=marked)
        assert np.flatnonzero(np.isnan(missing.X[:, 0])).tolist() == [7]
        assert missing.type_of("c").kind == kind
        lenient = read_types(
            {"*": {"on_error": "missing"}}
            if not declared
            else {"c": declared["c"].model_dump() | {"on_error": "missing"}}
        )
        with pytest.warns(errors.DataNotice, match=r"'c' contains 1 of 40 values that are no"):
            again = read(spoilt, reader, tmp_path, declared=lenient)
        np.testing.assert_array_equal(again.X, missing.X)
        with raises_code(errors.TableError, "SVFL-TABLE-TYPE", row=8):
            read(spoilt, reader, tmp_path, known=whole.types)  # new rows of a model


@pytest.mark.parametrize("reader", READER_NAMES)
def test_units_of_new_rows_are_those_of_the_model(reader: str, tmp_path: Path) -> None:
    fractions, percents = (
        read([f"0.{k}5" for k in range(10, 50)], reader, tmp_path),
        read(FULL_COLUMNS["percent"], reader, tmp_path),
    )
    with raises_code(errors.TableError, "SVFL-TABLE-TYPE", row=1, misfits=40) as caught:
        read(FULL_COLUMNS["percent"], reader, tmp_path, known=fractions.types)
    assert "contained numbers in the training" in str(caught.value)
    assert "percent sign" in str(caught.value)
    assert "--columns" not in str(caught.value), "a declaration does not change the type of a model"
    with raises_code(errors.TableError, "SVFL-TABLE-TYPE") as caught:
        read(FULL_COLUMNS["number"], reader, tmp_path, known=percents.types)
    assert "--columns" not in str(caught.value)
    np.testing.assert_array_equal(read(FULL_COLUMNS["percent"], reader, tmp_path, known=percents.types).X, percents.X)
    with raises_code(errors.TableError, "SVFL-TABLE-TYPE"):
        columns_of("shop", {"c": [1.5] * 40, "n": range(40)}, known=percents.types)


@pytest.mark.parametrize("reader", READER_NAMES)
def test_codes_keep_their_leading_zeros(reader: str, tmp_path: Path) -> None:
    codes = ["01067", "80331", "01069", None] * 10
    columns = read(codes, reader, tmp_path)
    assert columns.categories == {"c": ("01067", "01069", "80331")}


@pytest.mark.parametrize("mark", ["?", ".", "-", "\\N", "None", "#DIV/0!", "missing", "n.a.", "-999", " "])
def test_declared_missing_marks_are_read_as_missing(mark: str, tmp_path: Path) -> None:
    numbers = [mark if k % 10 == 0 else f"{k}.5" for k in range(60)]
    towns = [mark if k % 10 == 0 else "abc"[k % 3] for k in range(60)]
    for reader in ("csv", "polars"):
        if mark == " ":
            assert np.isnan(read(numbers, reader, tmp_path).X[:, 0]).sum() == 6
            assert np.isnan(read(towns, reader, tmp_path).X[:, 0]).sum() == 6
            continue
        if mark != "-999":
            with raises_code(errors.TableError, "SVFL-TABLE-TYPE", row=1) as caught:
                read(numbers, reader, tmp_path)
            assert repr(mark) in str(caught.value)
        with pytest.warns(errors.DataNotice) as notices:
            read(towns, reader, tmp_path)
        assert any(repr(mark) in str(notice.message) or mark == "-999" for notice in notices)
        for values in (numbers, towns):
            columns = read(values, reader, tmp_path, declared=read_types({"c": {"missing": [mark]}}))
            assert np.flatnonzero(np.isnan(columns.X[:, 0])).tolist() == list(range(0, 60, 10))
    columns = columns_of(
        "shop", {"c": [-999.0, 1, 2], "n": [1, 2, 3]}, declared=read_types({"c": {"missing": ["-999"]}})
    )
    assert np.isnan(columns.X[0, 0])


def test_formats_that_are_ambiguous_can_be_declared(tmp_path: Path) -> None:
    days = [f"{k % 11 + 1:02}.{k % 12 + 1:02}.2020" for k in range(30)]
    with raises_code(errors.TableError, "SVFL-TABLE-TYPE"):
        read(days, "csv", tmp_path)
    columns = read(days, "csv", tmp_path, declared=read_types({"c": {"type": "date", "format": "%d.%m.%Y"}}))
    assert columns.X[0, 0] == (datetime.date(2020, 1, 1) - datetime.date(1970, 1, 1)).days
    columns = read(["1,200", "3,500"], "csv", tmp_path, declared=read_types({"c": {"type": "number", "decimal": "."}}))
    assert columns.X[:, 0].tolist() == [1200, 3500]
    columns = read(["1,200", "3,5"], "csv", tmp_path, declared=read_types({"c": {"type": "number", "decimal": ","}}))
    assert columns.X[:, 0].tolist() == [1.2, 3.5]


def test_declarations_that_cannot_be_used_are_named() -> None:
    for wrong in ({"c": "colour"}, {"c": {"typ": "number"}}, {"c": 3}, "category"):
        with raises_code(errors.ConfigError, "SVFL-JOB-OPTION"):
            read_types(wrong)
    with raises_code(errors.TableError, "SVFL-TABLE-COLUMNS", columns=["d"]):
        vfl.Party("shop", {"c": [1, 2]}, ids=[1, 2], columns={"d": "category"})


def test_the_job_file_and_the_command_declare_types(tmp_path: Path) -> None:
    table(CODES.tolist(), tmp_path, "csv").rename(tmp_path / "shop.csv")
    rows = zip(IDS, Y, np.random.default_rng(1).normal(size=N), strict=True)
    (tmp_path / "bank.csv").write_text("id,y,b,empty\n" + "".join(f"{i},{y},{b},\n" for i, y, b in rows))
    lines = [
        'model = "logistic"',
        'protocol = { residual = "open" }',
        'optimizer = { name = "fedbcd", lr = 0.5 }',
        'accepts = ["columns"]',
        "batch_size = 50",
        "epochs = 20",
        'prepare = { drop = ["empty"] }',
    ]
    job, typed = tmp_path / "job.toml", tmp_path / "typed.toml"
    job.write_text("\n".join(lines), encoding="utf-8-sig")  # as an editor of Windows writes it
    typed.write_text("\n".join([*lines, "[columns.shop]", 'branch = "category"']))
    (tmp_path / "types.toml").write_text('branch = { type = "category" }\n')
    assert column_types_of(typed)["shop"]["branch"].kind == "category"
    assert Job.load(typed).digest == Job.load(job).digest
    data = [f"--data={name}={tmp_path / name}.csv" for name in ("bank", "shop")]
    auc = {}
    for name, arguments in {
        "numbers": [str(job)],
        "job": [str(typed)],
        "command": [str(job), "--columns", f"shop={tmp_path / 'types.toml'}"],
    }.items():
        report = tmp_path / "report.json"
        done = CliRunner().invoke(app, ["train", *arguments, *data, "--json", str(report)])
        assert done.exit_code == 0, done.output
        auc[name] = json.loads(report.read_text())["metrics"]["auc"]
    assert auc["job"] == auc["command"] > auc["numbers"] + 0.1
    done = CliRunner().invoke(
        app, ["describe", f"--data={tmp_path / 'shop.csv'}", f"--columns={tmp_path / 'types.toml'}"]
    )
    assert done.exit_code == 0
    assert "declared" in done.output
    assert "values" in done.output
    job.write_text("\n".join([*lines[:-1], 'prepare = { drop = ["empty", "nowhere"] }']))
    done = CliRunner().invoke(app, ["train", str(job), *data])
    assert done.exit_code == 2
    assert "prepare.drop names columns that no table has: nowhere" in done.stderr


WRITTEN: dict[str, st.SearchStrategy[str]] = {
    "number": st.integers(-9999, 9999).map(lambda k: f"{k / 8}"),
    "date": st.dates(datetime.date(1950, 1, 1), datetime.date(2030, 1, 1)).map(str),
    "percent": st.integers(0, 1000).map(lambda k: f"{k / 10}%"),
    "category": st.sampled_from(["red", "green", "blue", "grey"]),
}


def read_or_refuse(values: list[Any], reader: str, folder: Path) -> Columns | None:
    """Return the column, or None if an error that names it refuses it."""
    try:
        return read(values, reader, folder)
    except errors.TableError as error:
        message = str(error)
    assert "'c'" in message
    return None


@given(st.data(), st.sampled_from(sorted(WRITTEN)), st.sampled_from(READER_NAMES))
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_one_value_changes_no_type_and_drops_no_row_in_silence(
    tmp_path: Path, data: st.DataObject, kind: str, reader: str
) -> None:
    values: list[Any] = data.draw(st.lists(WRITTEN[kind], min_size=30, max_size=40))
    values[:2] = ["2020-01-02", "2021-03-04"] if kind == "date" else values[:2]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = read(values, reader, tmp_path)
    assert whole.type_of("c").kind == kind
    row = data.draw(st.integers(0, len(values) - 1))
    odd = data.draw(
        st.sampled_from(["n/k", "12%", "7", "1,234", "(5)", "2020/01/25", "5 inch", "31.12.2020", "$5", "007"])
    )
    spoilt = [*values]
    spoilt[row] = odd
    with warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always")
        columns = read_or_refuse(spoilt, reader, tmp_path)
    if columns is None:
        return
    assert len(columns.X) == len(values)
    assert columns.X[:, 1].tolist() == list(range(len(values)))
    same = columns.type_of("c").kind == kind
    named = any("'c'" in str(notice.message) for notice in notices)
    assert same or named
    if same and kind != "category":
        np.testing.assert_array_equal(np.delete(columns.X, row, 0), np.delete(whole.X, row, 0))


@pytest.mark.filterwarnings("ignore::securevfl.errors.DataNotice")
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("kind", FULL_COLUMNS)
def test_misfits_are_missing_in_every_place_if_it_is_declared(kind: str, suffix: str, tmp_path: Path) -> None:
    """This holds for training from memory and disk, the model's file, new rows in Python
    and from a file, and a gateway.
    """
    keys: dict[str, Any] = {"type": kind} | ({"unit": "$", "decimal": "."} if kind == "currency" else {})
    values = (FULL_COLUMNS[kind] * 10)[:400]
    odd_rows = list(range(0, 400, 20))
    for row in odd_rows:
        values[row] = "Xanadu"
    columns = {"id": [f"k{row}" for row in range(400)], "c": values, "n": [row % 7 for row in range(400)]}
    path = tmp_path / f"t.{suffix}"
    (pq.write_table if suffix == "parquet" else pyarrow.csv.write_csv)(pa.table(columns), path)
    for on_error in ("refuse", "missing"):
        options = ReadOptions(declared=read_types({"c": keys | {"on_error": on_error}}))
        if on_error == "refuse":
            for read_file in (read_party, copy_to_temporary_table):
                with raises_code(errors.TableError, "SVFL-TABLE-TYPE", column="c", row=1, misfits=20):
                    read_file("shop", path, options)
            continue
        shop, stored = read_party("shop", path, options), copy_to_temporary_table("shop", path, options)
    np.testing.assert_array_equal(shop.X, stored.X[:])
    assert np.flatnonzero(np.isnan(shop.X[:, 0])).tolist() == odd_rows
    lead = vfl.Party(
        "bank", np.random.default_rng(0).normal(size=(400, 2)), [row % 2 for row in range(400)], ids=shop.ids
    )
    part = vfl.simulate(JOB, [lead, shop]).parts["shop"]
    part.save(tmp_path / "part.json")
    part = ModelPart.load(tmp_path / "part.json")
    expected = part.rows(shop.table)
    np.testing.assert_array_equal(part.rows({"c": values, "n": columns["n"]}), expected)
    blocks = [X for _, X in rows_of_file(part, path).blocks()]
    np.testing.assert_array_equal(part.scaling(np.concatenate(blocks)), expected)
    body = {"rows": [{"id": "k0", "columns": {"c": values[row], "n": columns["n"][row]}} for row in range(21)]}
    requested = ScoreRequests(part.preparation.types).parse(json.dumps(body).encode())
    sent = {name: [row.columns[name] for row in requested if row.columns] for name in ("c", "n")}
    np.testing.assert_array_equal(part.rows(sent), expected[:21])


@pytest.mark.parametrize("reader", ["dict", "csv", "parquet"])
def test_infinities_are_missing_if_it_is_declared(reader: str, tmp_path: Path) -> None:
    numbers: list[Any] = [float(k) for k in range(40)]
    numbers[3] = math.inf
    with pytest.warns(errors.DataNotice) as notices:
        columns = read(numbers, reader, tmp_path, declared=read_types({"c": {"on_error": "missing"}}))
    assert any("'c' contains 1 infinite" in str(notice.message) for notice in notices)
    assert np.flatnonzero(np.isnan(columns.X[:, 0])).tolist() == [3]
    assert np.isinf(read(numbers, reader, tmp_path).X[3, 0])  # a party refuses it


def test_types_decided_from_values_are_counted(tmp_path: Path) -> None:
    rows = [f"k{k},{k % 2},{'Bonn' if k % 3 else 'Ulm'},{k}.5,{k % 5}" for k in range(120)]
    (tmp_path / "bank.csv").write_text("\n".join(["id,y,town,sum,visits", *rows, ""]))
    counted = "2 as numbers (sum, visits), 1 as categories (town)"
    with pytest.warns(errors.DataNotice) as notices:
        bank = read_party("bank", tmp_path / "bank.csv")
    assert any(counted in str(notice.message) for notice in notices)
    assert counted in vfl.describe(bank).head
    shop = vfl.Party("shop", {"s": np.random.default_rng(0).normal(size=120)}, ids=bank.ids)
    sheet = vfl.explain(JOB, [bank, shop])
    assert f"bank: {counted}" in sheet.first_screen
    assert "shop:" not in sheet.first_screen.partition("decided from values")[2].partition("\n\n")[0]
    alone = vfl.explain(JOB, [bank], others={"shop": 1})
    assert counted in alone.first_screen
    typed = vfl.Party("bank", {"town": ["a", "b"] * 60}, bank.y, ids=bank.ids, columns={"town": "category"})
    assert "decided from values" not in vfl.explain(JOB, [typed, shop])


@pytest.mark.filterwarnings("ignore::securevfl.errors.DataNotice")
@pytest.mark.parametrize("reader", READER_NAMES)
@pytest.mark.parametrize("odd", ["k.A.", "Xanadu"])
def test_odd_values_among_numbers_with_separators_are_refused(reader: str, odd: str, tmp_path: Path) -> None:
    for values in ([f"{k}.{k % 7}00,5" for k in range(1, 60)], [f"{k},{k % 7}00.5" for k in range(1, 60)]):
        whole = read(values, reader, tmp_path)
        assert whole.type_of("c").kind == "number"
        spoilt = [*values]
        spoilt[11] = odd
        with raises_code(errors.TableError, "SVFL-TABLE-TYPE", column="c", row=12):
            read(spoilt, reader, tmp_path)
        columns = read(spoilt, reader, tmp_path, declared=read_types({"c": {"missing": [odd]}}))
        np.testing.assert_array_equal(np.delete(columns.X, 11, 0), np.delete(whole.X, 11, 0))
        assert np.isnan(columns.X[11, 0])


def test_an_odd_value_among_decimal_commas_is_refused(tmp_path: Path) -> None:
    lines = [f"k{k};{k},5;{k}" for k in range(60)]
    lines[4] = "k4;k.A.;4"
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["id;c;n", *lines, ""]))
    with raises_code(errors.TableError, "SVFL-TABLE-TYPE", column="c", row=5):
        read_table(path)
    columns = read_table(path, ReadOptions(declared=read_types({"c": {"missing": ["k.A."]}}))).columns
    assert columns.X[5, 0] == 5.5


@pytest.mark.parametrize("reader", READER_NAMES)
def test_declared_amounts_may_have_separators(reader: str, tmp_path: Path) -> None:
    for values, unit in (
        ([f"$ {k},000.50" for k in range(1, 40)], "$"),
        ([f"{k}.000,50 €" for k in range(1, 40)], "€"),
    ):
        columns = read(values, reader, tmp_path, declared=read_types({"c": {"type": "currency", "unit": unit}}))
        assert columns.X[:, 0].tolist() == [1000 * k + 0.5 for k in range(1, 40)]
        new = read([values[3]], reader, tmp_path, known=columns.types)  # a single new row has the mark of the model
        assert new.X[0, 0] == 4000.5


@pytest.mark.parametrize("suffix", [".csv", ".parquet", "frame"])
@pytest.mark.parametrize(
    ("declaration", "texts", "values"),
    [
        ({"type": "number", "missing": ["k.A."]}, ["1,08", "1.234,50", "k.A.", "12"], [1.08, 1234.5, np.nan, 12]),
        ({"type": "currency", "unit": "EUR"}, ["1.234,50 €", "5,25 €", "€ 7,00", "EUR 3,10"], [1234.5, 5.25, 7, 3.1]),
        ({"type": "currency", "unit": "$"}, ["$1,234.50", "5.25 USD", "-$7.00", "$3.10"], [1234.5, 5.25, -7, 3.1]),
        ({"type": "date", "format": "%d.%m.%Y"}, ["02.01.1970", "1970-01-03", "1970-01-01"], [1, 2, 0]),
        ({"type": "percent"}, ["1,5 %", "12,25 %", "3 %", "0,5 %"], [1.5, 12.25, 3, 0.5]),
    ],
)
def test_the_declaration_that_an_error_advises_works(
    suffix: str, declaration: dict[str, Any], texts: list[str], values: list[float], tmp_path: Path
) -> None:
    """German exports with semicolons, and the same texts in files and frames with types."""
    path = tmp_path / f"t{suffix}"
    if suffix == ".csv":
        path.write_text("id;v;w\n" + "".join(f"c{k};{text};{k}\n" for k, text in enumerate(texts)))
    table = pa.table({"id": [f"c{k}" for k in range(len(texts))], "v": texts, "w": range(len(texts))})
    if suffix == ".parquet":
        pq.write_table(table, path)
    if suffix == "frame":
        party = vfl.Party("shop", table.select(["v", "w"]), columns={"v": declaration}, aligned=True)
    else:
        party = read_party("shop", path, ReadOptions(declared=read_types({"v": declaration})))
    np.testing.assert_allclose(party.X[:, 0], values)


@pytest.mark.parametrize("reader", READER_NAMES)
@pytest.mark.parametrize("kind", [*FULL_COLUMNS, "text"])
def test_marks_of_missing_values_fit_every_type(kind: str, reader: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {}
    if kind == "currency":
        options = {"declared": read_types({"c": {"type": "currency", "unit": "$", "decimal": "."}})}
    for mark in ("NAN", "nan", "-Nan", "NA", "null", " "):
        values = [*(FULL_COLUMNS[kind] if kind != "text" else [f"t{k % 4}" for k in range(40)])]
        values[3] = mark
        columns = read(values, reader, tmp_path, **options)
        assert np.flatnonzero(np.isnan(columns.X[:, 0])).tolist() == [3], mark
        assert columns.type_of("c").kind == ("category" if kind == "text" else kind), mark
        assert mark not in columns.categories.get("c", ()), mark


@pytest.mark.parametrize("reader", READER_NAMES)
@pytest.mark.parametrize("order", ["%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y"])
def test_one_value_decides_the_order_of_dates(order: str, reader: str, tmp_path: Path) -> None:
    first, second = (datetime.date(2023, 1, 1), datetime.date(2023, 12, 31))
    days = [datetime.date(2023, 1 + k % 12, 1 + k % 9) for k in range(38)] + [first, second]
    with pytest.warns(errors.DataNotice) as notices:
        columns = read([day.strftime(order) for day in days], reader, tmp_path)
    place = "day" if order.startswith("%d") else "month"
    assert any(f"the {place} first" in str(notice.message) for notice in notices)
    assert columns.X[:, 0].tolist() == [(day - datetime.date(1970, 1, 1)).days for day in days]
    new = read([datetime.date(2024, 5, 4).strftime(order)] * 40, reader, tmp_path, known=columns.types)
    assert set(new.X[:, 0].tolist()) == {(datetime.date(2024, 5, 4) - datetime.date(1970, 1, 1)).days}
    undecided = [day.strftime(order) for day in days[:-1]]
    for texts in (undecided, [*undecided, "31/12/2023", "12/31/2023"], [*undecided, "31.12.2023", "12.31.2023"]):
        with raises_code(errors.TableError, "SVFL-TABLE-TYPE"):
            read((texts * 2)[:40] if len(texts) < 40 else texts[-40:], reader, tmp_path)
    with raises_code(errors.TableError, "SVFL-TABLE-TYPE", row=4, misfits=1):
        read([*(day.strftime(order) for day in days[:3]), "32/13/2023", *(day.strftime(order) for day in days[4:])],
             reader, tmp_path, known=columns.types)  # fmt: skip


@pytest.mark.parametrize("reader", READER_NAMES)
@pytest.mark.parametrize("bad", ["45/01/2023", "01/45/2023", "31/02/2023", "00/05/2023"])
def test_an_impossible_date_decides_no_order_and_is_named(bad: str, reader: str, tmp_path: Path) -> None:
    days = [datetime.date(2023, 1 + k % 12, 1 + k % 9) for k in range(40)]
    for order, decides in (("%d/%m/%Y", "31/12/2023"), ("%m/%d/%Y", "12/31/2023")):
        values = [day.strftime(order) for day in days]
        values[4] = bad
        with raises_code(errors.TableError, "SVFL-TABLE-TYPE", row=5):
            read(values, reader, tmp_path)
        values[7] = decides
        with raises_code(errors.TableError, "SVFL-TABLE-TYPE", row=5, misfits=1):
            read(values, reader, tmp_path)


MARKS: dict[str, Any] = {
    "text": "-999",
    "text of a float": "-999.0",
    "int": -999,
    "float": -999.0,
    "numpy int": np.int64(-999),
    "numpy float": np.float32(-999),
}


@pytest.mark.parametrize("reader", READER_NAMES)
@pytest.mark.parametrize("mark", MARKS)
def test_a_mark_that_is_a_number_stands_for_all_its_spellings(mark: str, reader: str, tmp_path: Path) -> None:
    declared = read_types({"c": {"missing": [MARKS[mark], "k.A."]}})
    (written,) = {declared["c"].missing[0].removesuffix(".0")}
    assert written == "-999"
    columns: dict[str, list[Any]] = {
        "number": [f"{k}.25" for k in range(40)],
        "category": [f"t{k % 4}" for k in range(40)],
        "currency": [f"{k},000.50" for k in range(40)],
    }
    for kind, values in columns.items():
        for spelling in ("-999", "-999.0", "-999.00", "k.A."):
            values[3], values[4] = spelling, "k.A."
            read_columns = read(values, reader, tmp_path, declared=declared)
            assert np.flatnonzero(np.isnan(read_columns.X[:, 0])).tolist() == [3, 4], (kind, spelling)
    assert read(["007", "7", "a"] * 5, reader, tmp_path, declared=read_types({"c": {"missing": [7]}})).categories[
        "c"
    ] == ("007", "a")


def test_bins_and_special_codes_may_be_numbers_of_numpy() -> None:
    kind = read_types({"c": {"bins": list(np.array([1, 2.5])), "special": [np.int32(-1), np.float64(2.5)]}})["c"]
    assert kind.edges == (1.0, 2.5)
    assert kind.special == ("-1", "2.5")


@pytest.mark.parametrize("unit", sorted(CURRENCY_SIGNS))
def test_an_amount_has_its_sign_wherever_the_unit_stands(unit: str) -> None:
    """Every spelling of a unit stands before or after the amount, with and without a space, after each sign."""
    texts, values = list[str](), list[float]()
    for spelling, (sign, factor), space in product(
        (unit, *CURRENCY_SIGNS[unit]), (("", 1), ("+", 1), ("-", -1)), ("", " ")
    ):
        for amount, number in (("12.50", 12.5), ("0.25", 0.25), ("1,234.75", 1234.75)):
            texts += [f"{sign}{spelling}{space}{amount}", f"{sign}{amount}{space}{spelling}"]
            values += 2 * [factor * number]
    declared = read_types({"c": {"type": "currency", "unit": unit}})
    assert columns_of("shop", {"c": texts}, declared=declared).X[:, 0].tolist() == values


def test_no_result_depends_on_the_order_of_a_set(tmp_path: Path) -> None:
    program = tmp_path / "read.py"
    units = ["CHF", "Fr.", "EUR", "€", "PLN", "zł"]
    program.write_text(
        "import warnings\n"
        "warnings.simplefilter('ignore')\n"
        "from securevfl.data.column_types import read_types\n"
        "from securevfl.data.columns import columns_of\n"
        f"for unit in {units!r}:\n"
        "    values = [f'{sign}{k}' for k in range(100, 110) for sign in ('Fr.', 'Fr', 'CHF') if unit in\n"
        "              ('CHF', 'Fr.')] or [f'{k} {unit}' for k in range(100, 110)]\n"
        "    declared = read_types({'c': {'type': 'currency', 'unit': unit}})\n"
        "    print(columns_of('shop', {'c': values}, declared=declared).X.tolist())\n"
    )
    outputs = set()
    for seed in "0123":
        run = subprocess.run(
            [sys.executable, str(program)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.add(run.stdout)
    assert len(outputs) == 1
    assert "100.0" in outputs.pop()


@pytest.mark.parametrize("brought", [np.arange(40.0), np.arange(40).astype("M8[D]")], ids=["numbers", "dates"])
@pytest.mark.parametrize("kind", ["number", "date", "percent", "currency"])
def test_nothing_is_to_be_declared_for_new_rows(kind: str, brought: Any) -> None:
    known = read_types({"c": {"type": kind, **({"unit": "$"} if kind == "currency" else {})}})
    known["c"] = known["c"].model_copy(update={"origin": "values"})
    fits = kind == ("number" if brought.dtype.kind == "f" else "date")
    if fits:
        assert len(columns_of("shop", {"c": brought}, known=known).X) == 40
        return
    with raises_code(errors.TableError, "SVFL-TABLE-TYPE") as refused:
        columns_of("shop", {"c": brought}, known=known)
    assert "declare" not in (refused.value.remedy or "")
    if kind not in ("percent", "currency") or brought.dtype.kind == "M":  # numbers fit a declared amount
        with raises_code(errors.TableError, "SVFL-TABLE-TYPE") as refused:
            columns_of("shop", {"c": brought}, declared=read_types({"c": {"type": kind}}))
        assert "declare another" in (refused.value.remedy or "")


@pytest.mark.parametrize("reader", READER_NAMES)
def test_dates_among_serial_numbers_of_a_spreadsheet_are_named(reader: str, tmp_path: Path) -> None:
    values = [f"{45000.5 + k}" if k % 3 else f"2023-05-{k % 9 + 1:02}" for k in range(80)]
    with raises_code(errors.TableError, "SVFL-TABLE-TYPE", row=1, misfits=27) as caught:
        read(values, reader, tmp_path)
    assert "27 of its 80 values are dates" in str(caught.value)
    assert "serial numbers of days" in str(caught.value)
