"""Tables from PostgreSQL, read from a real server."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from builders import raises_code
from postgres import PASSWORD, postgres

import securevfl as vfl
from securevfl.cli.database_tables import with_stored_queries
from securevfl.data.query_rows import MAX_EXACT_INTEGER, file_of_table, is_database, store_query
from securevfl.data.readers import read_party
from securevfl.errors import DataError, TableError
from tests.forked import run_forked

dbapi = pytest.importorskip("adbc_driver_postgresql.dbapi")
ROWS = 600


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A database with the tables `bank` and `shop`, which share ids and are in different orders."""
    with postgres() as found:
        rng = np.random.default_rng(3)
        hidden = rng.normal(size=ROWS)
        ids = np.array([f"K{k:05}" for k in range(ROWS)])
        income, visits = hidden + rng.normal(size=ROWS), hidden + rng.normal(size=ROWS)
        y = (hidden + 0.3 * rng.normal(size=ROWS) > 0).astype(np.int64)
        shuffled = rng.permutation(ROWS)
        bank = pa.table({"id": ids, "income": income, "grade": np.where(income > 0, "good", "bad"), "y": y})
        shop = pa.table({"id": ids[shuffled], "visits": visits[shuffled]})
        with dbapi.connect(found) as connection, connection.cursor() as cursor:
            cursor.adbc_ingest("bank", bank)
            cursor.adbc_ingest("shop", shop)
            connection.commit()
        yield found


def securevfl(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "securevfl.cli.main", *arguments]
    return run_forked(command, capture_output=True, text=True, cwd=folder, timeout=100)


@pytest.mark.long
def test_both_tables_of_a_training_come_from_postgresql(address: str, tmp_path: Path) -> None:
    """The model is as good as with the same tables in files, and nothing printed contains the password."""
    (tmp_path / "job.toml").write_text('model = "logistic"\nepochs = 4\nseed = 1\n')
    queries = ["--query", "bank=select * from bank", "--query", "shop=select * from shop where visits = visits"]
    databases = ["--data", f"bank={address}", "--data", f"shop={address}"]
    done = securevfl("train", "job.toml", *databases, *queries, "--json", "a.json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for party in ("bank", "shop"):
        fetched = securevfl("fetch", address, f"{party}.parquet", "--query", f"select * from {party}", folder=tmp_path)
        assert fetched.returncode == 0, fetched.stderr
        assert f"{ROWS} rows" in fetched.stdout
    files = ["--data", "bank=bank.parquet", "--data", "shop=shop.parquet"]
    again = securevfl("train", "job.toml", *files, folder=tmp_path)
    assert again.returncode == 0, again.stderr
    first, second = (float(re.search(r"AUC .* ([.0-9]+) ±", run.stdout)[1]) for run in (done, again))
    assert first == pytest.approx(second, abs=0.01)
    assert first > 0.8
    written = done.stdout + done.stderr + (tmp_path / "a.json").read_text()
    assert PASSWORD not in written
    assert "postgresql" not in (tmp_path / "a.json").read_text()


def test_every_type_is_converted_or_refused(address: str) -> None:
    query = (
        "select 7::int as i, 8::bigint as b, 1.25::numeric as n, 'a'::text as t, date '2024-02-29' as d, "
        "timestamp '2024-02-29 10:00' as s, true as o, 1.5::real as r, 'x'::varchar(5) as v, 'y'::char(4) as c, "
        "'123e4567-e89b-12d3-a456-426614174000'::uuid as u"
    )
    table = vfl.read_sql(address, f"{query} union all select {', '.join(['null'] * 11)}")
    first, second = table.to_pylist()
    assert first["n"] == 1.25
    assert (first["c"], first["v"], first["u"]) == ("y", "x", "123e4567-e89b-12d3-a456-426614174000")
    assert str(first["d"]) == "2024-02-29"
    assert set(second.values()) == {None}
    assert (first["i"], first["b"], first["o"], first["r"]) == (7, 8, True, 1.5)
    unusable = ["12.5::money", "interval '1 day'", "array[1, 2]", "'{}'::jsonb", "time '10:00'", "'1.1.1.1'::inet"]
    for value in (MAX_EXACT_INTEGER, -MAX_EXACT_INTEGER):
        assert vfl.read_sql(address, f"select {value}::numeric as amount")["amount"].to_pylist() == [value]
    inexact = [f"({sign}{MAX_EXACT_INTEGER + more})::numeric" for sign in ("", "-") for more in (1, 2, 10**17)]
    in_second_row = [f"amount from (values (1::numeric), ({value})) as t(amount)" for value in inexact]
    for value in [*(f"{value} as amount" for value in (*unusable, *inexact)), *in_second_row]:
        with raises_code(TableError, "SVFL-TABLE-TYPE") as caught:
            vfl.read_sql(address, f"select {value}")
        assert caught.value.fields["column"] == "amount", value


def test_the_file_equals_the_table_and_keeps_types(address: str, tmp_path: Path) -> None:
    """A query without rows gives a file whose reader says so; a large result is written in several batches."""
    assert store_query(address, "select * from bank", tmp_path / "a.parquet") == ROWS
    assert pa.parquet.read_table(tmp_path / "a.parquet").equals(vfl.read_sql(address, "select * from bank"))
    assert store_query(address, "select * from bank where false", tmp_path / "b.parquet") == 0
    assert vfl.read_sql(address, "select * from bank where false").schema.names == ["id", "income", "grade", "y"]
    with raises_code(TableError, "SVFL-TABLE-EMPTY"):
        read_party("bank", tmp_path / "b.parquet")
    query = "select k as id, k * 1.5 as x, repeat('z', 60) as t from generate_series(1, 400000) k"
    assert store_query(address, query, tmp_path / "c.parquet") == 400_000
    stored = pa.parquet.read_table(tmp_path / "c.parquet")
    assert stored["id"].to_pylist() == list(range(1, 400_001))
    assert stored["x"].type == pa.float64()
    assert pa.parquet.ParquetFile(tmp_path / "c.parquet").num_row_groups > 1


@pytest.mark.parametrize("names", [("a-1", "a_1"), ("a_1", "a-1"), ("a.b", "a b", "a_b")])
def test_similar_names_of_parties_keep_their_own_tables(address: str, names: tuple[str, ...]) -> None:
    data = tuple(f"{name}={address}" for name in names)
    queries = tuple(f"{name}=select {k} as number from bank" for k, name in enumerate(names))
    files = [item.partition("=") for item in with_stored_queries(data, queries)]
    assert [name for name, _, _ in files] == list(names)
    numbers = [set(pyarrow.parquet.read_table(file)["number"].to_pylist()) for _, _, file in files]
    assert numbers == [{k} for k in range(len(names))]


def test_open_connections_of_any_driver_can_be_used(address: str) -> None:
    with dbapi.connect(address) as connection:
        table = vfl.read_sql(connection, "select id, income from bank order by id")
    assert table.num_rows == ROWS
    with sqlite3.connect(":memory:") as other:
        other.execute("create table t (id text, x real, n integer)")
        other.executemany("insert into t values (?, ?, ?)", [("a", 1.5, 1), ("b", None, 2)])
        assert vfl.read_sql(other, "select * from t").to_pylist() == [
            {"id": "a", "x": 1.5, "n": 1},
            {"id": "b", "x": None, "n": 2},
        ]
        with raises_code(DataError, "SVFL-DATABASE"):
            vfl.read_sql(other, "select * from missing")


def test_errors_state_the_code_of_the_database_and_no_value(address: str, tmp_path: Path) -> None:
    """A text of a database may contain a value; an address may contain a password."""
    (tmp_path / "x.parquet").write_bytes(b"before")
    secret = "'4711-0815'"
    for query, state in [
        (f"select {secret}::int", "22P02"),
        (f"select ({secret} || id)::int from bank", ""),
        ("select * from missing", "42P01"),
        ("select absent from bank", "42703"),
        ("selec", "42601"),
        ("delete from bank returning *", "25006"),
        ("create table other (a int)", "25006"),
        ("select 1; select 2", "42601"),
        ("select 1 / (k - 3) from generate_series(1, 3) k", ""),
    ]:
        with raises_code(DataError, "SVFL-DATABASE") as caught:
            store_query(address, query, tmp_path / "x.parquet")
        assert caught.value.fields["sqlstate"] == state, query
        assert not any(word in str(caught.value) for word in ("4711", PASSWORD, "bank:"))
        assert caught.value.__suppress_context__
    assert (tmp_path / "x.parquet").read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["x.parquet"]
    for broken in (
        address.replace(PASSWORD, "wrong"),
        "postgresql://u:hidden@127.0.0.1:1/d",
        "postgresql://u:hidden@[",
    ):
        with raises_code(DataError, "SVFL-DATABASE") as caught:
            vfl.read_sql(broken, "select 1 as a")
        assert not any(word in str(caught.value) for word in ("wrong", "hidden", PASSWORD))


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "job.toml", "--data", "bank=postgresql://u:hidden@h/d", "--data", "shop=s.csv"],
        ["train", "job.toml", "--data", "bank=b.csv", "--data", "shop=s.csv", "--query", "select 1"],
        ["train", "job.toml", *["--data", "a=postgres://u:hidden@h/d", "--data", "b=postgres://h"], "--query", "x=1"],
        ["join", "job.toml", "--party", "bank", "--data", "postgresql://u:hidden@h/d"],
        ["describe", "--data", "postgresql://u:hidden@h/d"],
        ["align", "--party", "bank", "--data", "postgresql://u:hidden@h/d"],
        ["forget", "--party", "bank", "--data", "postgresql://u:hidden@h/d"],
        ["predict", "bank.model.json", "--data", "postgresql://u:hidden@h/d"],
        ["explain", "job.toml", "--data", "bank=postgresql://u:hidden@h/d", "--size", "shop=3"],
        ["fetch", "mysql://u:hidden@h/d", "a.parquet", "--query", "select 1"],
        ["fetch", "postgresql://u:hidden@h/d", "a.csv", "--query", "select 1"],
        ["train", "data.toml"],
    ],
)
def test_misplaced_addresses_are_refused_without_showing_them(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('model = "logistic"\n')
    (tmp_path / "data.toml").write_text(
        'model = "logistic"\ndata = { bank = "postgresql://u:hidden@h/d", shop = "s.csv" }\n'
    )
    done = securevfl(*arguments, folder=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "hidden" not in done.stdout + done.stderr
    assert "SVFL-COMMAND-USAGE" in done.stderr


def test_files_and_databases_are_told_apart() -> None:
    assert is_database("postgresql://h/d")
    assert is_database("postgres:///d?host=/run")
    assert not is_database("bank.csv")
    assert file_of_table("a/bank.csv") == Path("a/bank.csv")
