"""The description of a party's table: figures equal pooled statistics, and planted faults are named."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from sklearn.linear_model import LinearRegression
from sklearn.metrics import roc_auc_score
from typer.testing import CliRunner

import securevfl as vfl
from securevfl.cli.main import app
from securevfl.cli.show import split_wide_table
from securevfl.data.columns import Columns
from tests.builders import write_table

N = 4000


def described_columns(seed: int = 0) -> tuple[Columns, np.ndarray]:
    draw = np.random.default_rng(seed)
    a, b = draw.normal(size=(2, N))
    c = a + b + 0.5 * draw.normal(size=N)
    gaps = np.where(draw.random(N) < 0.1, np.nan, draw.normal(size=N))
    tails = draw.normal(size=N)
    tails[:8] = 1e5
    town = draw.choice(3, N, p=[0.5, 0.3, 0.2]).astype(float)
    y = (draw.random(N) < 1 / (1 + np.exp(1 - a - (town == 2)))).astype(int)
    names = ["a", "b", "c", "gaps", "tails", "town", "same", "nearly", "still", "total"]
    X = np.column_stack([a, b, c, gaps, tails, town, b, np.arange(N) < 20, np.ones(N), 2 * a + c])
    X[-3:], y[-3:] = X[0], y[0]
    return Columns(X, names, {"town": ("Bonn", "Jena", "Ulm")}), y


def test_figures_match_pooled_statistics_and_faults_are_named() -> None:
    columns, y = described_columns()
    description = vfl.describe(vfl.Party("bank", columns, y, ids=range(N)))
    by_name = {column.column: column for column in description.columns}
    assert (description.rows, description.doubled, description.positive) == (N, 3, ("1", pytest.approx(y.mean())))
    assert {name: column.notes for name, column in by_name.items() if column.notes} == {
        "tails": ("far tails",),
        "same": ("same as b",),
        "nearly": ("nearly constant",),
        "still": ("constant",),
        "a": ("a sum of others",),
        "b": ("a sum of others",),
        "c": ("a sum of others",),
        "total": ("a sum of others",),
    }
    X = columns.X
    assert by_name["gaps"].missing == np.isnan(X[:, 3]).mean()
    assert by_name["gaps"].quartiles == pytest.approx(np.nanquantile(X[:, 3], [0, 0.25, 0.5, 0.75, 1]))
    assert by_name["tails"].far == pytest.approx(np.isin(X[:, 4], [1e5]).mean())
    assert by_name["town"].quartiles is None
    assert by_name["town"].different == 3
    assert by_name["a"].auc == pytest.approx(roc_auc_score(y, X[:, 0]))
    rates = np.array([y[X[:, 5] == k].mean() for k in range(3)])
    assert by_name["town"].auc == pytest.approx(roc_auc_score(y, rates[X[:, 5].astype(int)]))
    there = ~np.isnan(X[:, 3])
    assert by_name["gaps"].auc == pytest.approx(roc_auc_score(y[there], X[there, 3]))
    p = np.array([((X[:, 5] == k) & (y == 1)).sum() / y.sum() for k in range(3)])
    n = np.array([((X[:, 5] == k) & (y == 0)).sum() / (1 - y).sum() for k in range(3)])
    assert by_name["town"].iv == pytest.approx(float(((p - n) * np.log(p / n)).sum()), rel=0.01)
    assert by_name["a"].iv is not None
    assert by_name["b"].iv is not None
    assert by_name["a"].iv > 0.5 > 0.02 > by_name["b"].iv


def test_variance_inflation_is_that_of_regressions() -> None:
    columns, _ = described_columns()
    X = columns.X[:, :4]
    filled = np.where(np.isnan(X), np.nanmedian(X, axis=0), X)
    description = vfl.describe(vfl.Party("shop", Columns(X, ["a", "b", "c", "gaps"]), ids=range(N)))
    assert description.positive is None
    for j, column in enumerate(description.columns):
        other_columns = np.delete(filled, j, axis=1)
        r2 = LinearRegression().fit(other_columns, filled[:, j]).score(other_columns, filled[:, j])
        assert column.vif == pytest.approx(1 / (1 - r2))
        assert (column.iv, column.auc) == (None, None)


def test_the_command_says_how_columns_were_read(tmp_path: Path) -> None:
    data, page, figures = tmp_path / "shop.csv", tmp_path / "d.html", tmp_path / "d.json"
    lines = [
        f"{i},{i % 7}.5,{i % 50} %,2024-01-{i % 28 + 1:02d},{'<b>' if i % 3 else 'x'},t{i},{i % 2}" for i in range(200)
    ]
    data.write_text("\n".join(["id,amount,share,since,town,note,y", *lines]))
    result = CliRunner().invoke(app, ["describe", "--data", str(data), "--html", str(page), "--json", str(figures)])
    assert result.exit_code == 0, result.output
    description = json.loads(figures.read_text())
    kinds = {column["column"]: column["kind"] for column in description["columns"]}
    assert kinds == {"amount": "number", "share": "percent", "since": "date", "town": "text", "note": "text"}
    assert description["columns"][2]["quartiles"][0] == "2024-01-01"
    assert description["columns"][4]["notes"] == ["each text once"]
    assert (description["party"], description["positive"]) == ("shop", {"class": "1", "share": 0.5})
    text = page.read_text()
    assert all(column["column"] in text and column["column"] in result.output for column in description["columns"])
    assert "<b>" not in text
    assert CliRunner().invoke(app, ["describe", "--data", str(data), "--label", "none"]).output.count("IV") == 0


@pytest.mark.parametrize("width", [30, 60, 400])
def test_what_is_wider_than_a_terminal_comes_in_parts_and_uncut(width: int) -> None:
    heads = ["column", *(f"figure {j}" for j in range(9)), "notes"]
    rows = [[f"balance{i}", *(1234.5 * j for j in range(9)), ""] for i in range(3)]
    out = Console(width=width, file=StringIO())
    parts = split_wide_table(heads, rows, width)
    for part in parts:
        out.print(part)
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert len(parts) == {30: 5, 60: 2, 400: 1}[width]
    assert "…" not in text
    assert text.count("balance2") == len(parts)
    assert all(head in text for head in heads[:-1])
    assert "notes" not in text  # since there are no notes


@pytest.mark.parametrize("empties", [("none",), ("none", "last")])
@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_columns_without_values_are_reported(suffix: str, empties: tuple[str, ...], tmp_path: Path) -> None:
    """`describe` looks for what a training refuses, so it must not refuse the table; nor does `bins` of others."""
    columns = {"none": np.full(60, np.nan), "a": np.arange(60.0) % 7, "last": np.full(60, np.nan)}
    columns = {name: values for name, values in columns.items() if name == "a" or name in empties}
    table = {"id": np.arange(60), **columns, "y": np.arange(60) % 2}
    path, figures = tmp_path / f"t{suffix}", tmp_path / "d.json"
    if suffix == ".npz":
        X = np.column_stack([*columns.values()])
        np.savez(path, X=X, columns=[*columns], ids=table["id"], y=table["y"])
    else:
        write_table(path, table)
    done = CliRunner().invoke(app, ["describe", "--data", str(path), "--json", str(figures)])
    assert done.exit_code == 0, done.output
    described = {column["column"]: column for column in json.loads(figures.read_text())["columns"]}
    assert described.keys() == {"a", *empties}
    for name in empties:
        assert (described[name]["missing"], described[name]["different"], described[name]["auc"]) == (1, 0, None)
        assert "no values" in described[name]["notes"][0]
    assert not described["a"]["notes"]
    bins = ["bins", "--data", str(path), "--column"]
    assert CliRunner().invoke(app, [*bins, "a"]).exit_code == 0
    refused = CliRunner().invoke(app, [*bins, "none"])
    assert (refused.exit_code, "SVFL-TABLE-EMPTY-COLUMN" in refused.output) == (2, True)


def test_a_table_without_any_value_is_refused(tmp_path: Path) -> None:
    path = write_table(tmp_path / "t.csv", {"id": np.arange(60), "none": np.full(60, np.nan), "y": np.arange(60) % 2})
    refused = CliRunner().invoke(app, ["describe", "--data", str(path)])
    assert refused.exit_code == 2
    assert "SVFL-TABLE-EMPTY" in refused.output
