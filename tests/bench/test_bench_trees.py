"""The benchmark of trees on secret shares, on tables that take seconds."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks import trees
from benchmarks.__main__ import app
from securevfl.data.party import Party
from securevfl.errors import DataError
from tests.builders import REAL_TABLES, raises_code


def row_of(parties: list[Party], trained: int, monkeypatch: pytest.MonkeyPatch, **options: bool) -> dict[str, Any]:
    """Return the row of the benchmark for a table of these parties, of whose rows so many are trained on."""
    monkeypatch.setitem(trees.SPLIT, "heavy", lambda rows: trained)
    monkeypatch.setattr(trees, "parties_of", lambda data, name: parties)
    return trees.table(Path(), "heavy", 4, 0, **options)


@pytest.mark.slow
def test_a_row_has_costs_and_the_gain_of_mixed_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    row = row_of(trees.made_up(1000, 4, 4), 700, monkeypatch)
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    assert row["trees"] == [2, 6]
    assert row["widths"] == [2 * 16 + 8 + 2, 6 * 16 + 8 + 32]
    assert abs(row["auc"] - row["auc_float"]) < 0.05
    assert row["difference"] == row["auc"] - row["auc_boosting"]
    assert row["bytes"] > 0
    assert row["clock_s"] > 0
    assert 0.5 < row["auc_boosting"] <= 1
    assert {"auc_linear", "auc_mixed", "auc_xgboost", "cpu_s", "virtual_s", "peak_mib"} <= set(row)


@pytest.mark.long
def test_trees_over_all_columns_learn_an_exclusive_or(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    made_up = trees.made_up(1500, 3, 3, tails=False)
    made_up[0].y[:] = (made_up[0].X[:, 0] > 0) ^ (made_up[1].X[:, 0] > 0) ^ (rng.random(1500) < 0.05)
    row = row_of(made_up, 1000, monkeypatch, shares=False)
    assert row["auc_mixed"] > 0.8
    assert max(row["auc_boosting"], row["auc_float"]) < 0.6
    assert "auc" not in row


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with raises_code(DataError, "SVFL-TABLE-UNREADABLE"):
        trees.table(tmp_path, "phishing", None, 0)
    text = CliRunner().invoke(app, ["trees", "--data", str(tmp_path), "--tables", "nothing"])
    assert text.exit_code == 2


@pytest.mark.slow
@pytest.mark.realdata
def test_a_real_table_trains_as_in_floats() -> None:
    if not REAL_TABLES.is_dir():
        pytest.skip("no real tables here")
    row = trees.table(REAL_TABLES, "breast", 20, 0)
    assert abs(row["auc"] - row["auc_float"]) <= 0.005
    assert row["auc"] >= row["auc_boosting"] - 0.01
