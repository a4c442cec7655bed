"""Numbers and dates as people write them are read if they are unambiguous, and otherwise refused with the row."""

import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from builders import raises_code

import securevfl as vfl
from securevfl.data.column_types import read_types
from securevfl.data.columns import columns_of
from securevfl.data.preparation import Preparation, fit_preparation
from securevfl.data.read_options import ReadOptions
from securevfl.data.readers import read_table
from securevfl.data.text_values import parse_dates, parse_numbers, unreadable_format
from securevfl.errors import TableError
from securevfl.families.table_preparation import prepare_party

DAYS = ["2024-02-29", "1970-01-01", "2023-12-31"]
EXPECTED = [19_782.0, 0.0, 19_722.0]


@pytest.mark.parametrize(
    ("texts", "numbers"),
    [
        (["1,200.50", "3.5", "12", "-1,000"], [1200.5, 3.5, 12.0, -1000.0]),
        (["1.200,50", "3,5", "12"], [1200.5, 3.5, 12.0]),
        (["1,200,300", "5"], [1_200_300.0, 5.0]),
        (["12 %", "3.5%", "-1 %"], [12.0, 3.5, -1.0]),
        (["1,200"], None),
        (["1.200", "1,200.5"], [1.2, 1200.5]),
        (["1,200.50", "1.200,50"], None),
        (["12 %", "3"], None),
        (["1,20.5"], None),
        (["1,200.50", "EUR"], None),
        ([], None),
    ],
)
def test_numbers_are_read_where_marks_leave_no_doubt(texts: list[str], numbers: list[float] | None) -> None:
    assert parse_numbers(texts) == numbers


@pytest.mark.parametrize(
    ("texts", "days"),
    [
        (DAYS, EXPECTED),
        (["2024-02-29T12:00", "1970-01-01 00:00:00"], [19_782.5, 0.0]),
        (["1970-01-02T01:00:00+01:00"], [1.0]),
        (["2023-02-29"], None),
        (["05/04/2024"], None),
        (["2024-02-29", "soon"], None),
    ],
)
def test_dates_are_days_since_1970(texts: list[str], days: list[float] | None) -> None:
    assert parse_dates(texts) == days


UNREAD = {
    "order of day and month": (
        ["06/04/2023", "17/05/2023", "1/2/2023 8:30 PM"],
        ["06.04.2023", "07.05.2023"],
        ["17.05.2023", "05.17.2023"],
        ["6-4-23", "7-5-23"],
    ),
    "currency sign": (
        ["€ 230,000", "€ 1,000", "€ 12"],
        ["$5", "-$7.20"],
        ["12,50 EUR", "3 EUR"],
        ["10 kr", "1 200 kr"],
    ),
}


@pytest.mark.parametrize(("what", "texts"), [(what, texts) for what, columns in UNREAD.items() for texts in columns])
@pytest.mark.parametrize("kind", ["csv", "parquet", "frame"])
def test_what_cannot_be_read_is_named_and_no_text(tmp_path: Path, what: str, texts: list[str], kind: str) -> None:
    """For every type of table, and next to a missing value or a different one."""
    values = [*texts, *texts, "", "unknown"] if len(texts) > 2 else [*texts, *texts, ""]
    rows = pa.table({"id": list(range(len(values))), "c": [value or None for value in values]})
    path = tmp_path / f"shop.{kind}"
    if kind == "csv":
        path.write_text("\n".join(["id,c", *(f'{k},"{value}"' for k, value in enumerate(values))]))
    else:
        pyarrow.parquet.write_table(rows, path)
    with raises_code(TableError, "SVFL-TABLE-TYPE", column="c") as caught:
        columns_of("shop", rows.select(["c"])) if kind == "frame" else read_table(path)
    assert what in str(caught.value)
    assert not any(text in str(caught.value) for text in texts)


@pytest.mark.parametrize(
    "texts", [["A-12", "B-7"], ["EUR", "USD"], ["3 rooms", "4 rooms"], ["ABC 12 x"], ["1/2", "3/4"], []]
)
def test_other_texts_mean_nothing(texts: list[str]) -> None:
    assert not unreadable_format(texts)


def files(folder: Path) -> list[Path]:
    """Write one table as Parquet with its types, and as CSV and Parquet with texts."""
    lines = [f'{k},"{1000 + k:,}.50",{3 * k} %,{DAYS[k]}' for k in range(3)]
    (folder / "t.csv").write_text("id,sum,part,since\n" + "\n".join(lines) + "\n")
    sums, parts = [f"{1000 + k:,}.50" for k in range(3)], [f"{3 * k} %" for k in range(3)]
    days = [datetime.date.fromisoformat(day) for day in DAYS]
    for name, since in (("typed", pa.array(days)), ("texts", pa.array(DAYS))):
        table = pa.table({"id": ["0", "1", "2"], "sum": sums, "part": parts, "since": since})
        pa.parquet.write_table(table, folder / f"{name}.parquet")
    return [folder / name for name in ("t.csv", "typed.parquet", "texts.parquet")]


def test_every_reader_reads_them_alike(tmp_path: Path) -> None:
    for path in files(tmp_path):
        table = read_table(path).columns
        assert table.X.tolist() == [[1000.5 + k, 3.0 * k, EXPECTED[k]] for k in range(3)], path
        assert table.dates == {"since"}
        assert not table.categories
        selected = read_table(
            path, ReadOptions(chosen=["since", "sum"], declared=read_types({"sum": "category"}))
        ).columns
        assert selected.categories["sum"] == ("1,000.50", "1,001.50", "1,002.50"), path


@pytest.mark.parametrize("kind", ["datetime64[s]", "datetime64[ns]", object])
def test_arrays_of_dates_are_columns_of_dates(kind: object) -> None:
    moments = np.array(DAYS, dtype="datetime64[s]").astype(kind)
    moments = np.append(moments, np.array([None if kind is object else "NaT"], dtype=moments.dtype))
    columns = columns_of("shop", pa.table({"since": pa.array(moments), "n": [1.0, 2.0, 3.0, 4.0]}))
    assert columns.dates == {"since"}
    np.testing.assert_array_equal(columns.X[:, 0], [*EXPECTED, np.nan])


def test_what_can_be_read_in_two_ways_is_refused_with_its_row(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('id;a\n1;5\n2;8.25\n3;"1.200,5"\n')
    with raises_code(TableError, "SVFL-TABLE-TYPE") as caught:
        read_table(tmp_path / "t.csv")
    assert "1.200" not in str(caught.value)


def test_a_date_becomes_days_and_the_parts_that_vary() -> None:
    columns = columns_of(
        "shop", pa.table({"since": [*DAYS, None], "in_may": [f"2024-05-{day:02}" for day in (1, 2, 3, 6)]})
    )
    preparation = fit_preparation("shop", columns, np.arange(4), Preparation())
    assert preparation.features == ["since", "since=month", "since=weekday", "in_may", "in_may=weekday"]
    X = preparation.apply(columns)
    assert X[:3, 1].tolist() == [2, 1, 12]
    assert X[:3, 2].tolist() == [datetime.date.fromisoformat(day).weekday() for day in DAYS]
    assert X[3, 0] == np.median(EXPECTED)
    assert X[:, 4].tolist() == [2, 3, 4, 0]


def test_new_rows_are_prepared_as_those_of_the_training() -> None:
    days = np.arange("2024-01-01", "2024-12-30", dtype="datetime64[D]")
    late = (days > np.datetime64("2024-06-30")).astype(int)
    table = pa.table({"since": [str(day) for day in days], "sum": [f"{1000 + k:,}.5" for k in range(len(days))]})
    rows = np.arange(len(days))
    other = np.column_stack([rows % 7, rows % 5]).astype(float)
    parties = [vfl.Party("bank", table, late, ids=rows), vfl.Party("shop", other, ids=rows)]
    run = vfl.simulate(vfl.Job(model="logistic", protocol="open", epochs=5, accepts=["columns"]), parties)
    assert run.metrics["auc"] > 0.99
    proba = run.predict_proba({"bank": table.slice(0, 3), "shop": other[:3]})
    np.testing.assert_array_equal(proba, run.predict_proba({"bank": table, "shop": other})[:3])


def test_columns_left_out_take_no_part() -> None:
    table = pa.table({"a": [1.0, 2.0, 3.0, 4.0] * 20, "note": ["x", "y"] * 40, "since": [DAYS[0], DAYS[1]] * 40})
    bank = vfl.Party("bank", table, np.arange(80) % 2, ids=np.arange(80))
    job = vfl.Job(model="logistic", prepare={"drop": ["note", "since", "nowhere"]})
    prepared = prepare_party(job, bank, bank.register)
    assert (prepared.columns, prepared.X.shape, bank.columns) == (["a"], (80, 1), ["a", "note", "since"])
    with raises_code(TableError, "SVFL-TABLE-EMPTY"):
        prepare_party(vfl.Job(model="logistic", prepare={"drop": ["a", "note", "since"]}), bank, bank.register)
