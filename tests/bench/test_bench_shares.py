"""The benchmark of training on secret shares, at sizes that take seconds."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import securevfl as vfl
from benchmarks import shares
from benchmarks.__main__ import app
from benchmarks.product_costs import PRODUCT_STEPS, products
from securevfl.errors import DataError
from tests.builders import REAL_TABLES, raises_code


@pytest.mark.slow
def test_a_size_separates_the_offline_phase_and_one_round_trip() -> None:
    row = shares.size(40, 4, epochs=2)
    assert row["round_trips"] == 1.0
    assert row["bytes_ahead"] > 0
    assert row["cpu_ahead_ms"] > 0
    assert row["bytes_visit"] == pytest.approx(
        40 * 64 * 5 + 40 * 6, rel=0.15
    )  # tables of L = 40 bits, masked differences, positions


@pytest.mark.long
def test_products_are_timed_on_both_engines_in_turns() -> None:
    row = products(40, 4, 2, pairs=1)
    assert row["what"] == "products 40x4, 2 iterations"
    assert row["bytes"] <= 1.05
    assert row["ratio"] == pytest.approx(row["lattice_ms"] / row["kernel_ms"])
    assert row["kernel_ms"] == pytest.approx(sum(row[f"kernel_{part}_ms"] for part in PRODUCT_STEPS))


@pytest.mark.long
def test_scores_of_all_new_rows_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    scored: list[int] = []
    decision = vfl.Run.decision

    def noting(self: vfl.Run, tables: Any) -> Any:
        f = decision(self, tables)
        scored.append(len(f))
        return f

    monkeypatch.setattr(vfl.Run, "decision", noting)
    row = shares.prediction(200, 3)
    assert scored == [200]
    assert row["what"] == "prediction 200x3"


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with raises_code(DataError, "SVFL-TABLE-UNREADABLE"):
        shares.read(tmp_path, "phishing")
    text = CliRunner().invoke(app, ["shares", "--data", str(tmp_path), "--tables", "nothing"])
    assert text.exit_code == 2


@pytest.mark.realdata
def test_a_table_trains_as_in_floating_point(tmp_path: Path) -> None:
    if not REAL_TABLES.is_dir():
        pytest.skip("no real tables here")
    row = shares.table(REAL_TABLES, "breast")
    assert abs(row["auc"] - row["auc_float"]) <= 0.002
    assert 0.4 < row["attack_auc"] < 0.6
    assert json.loads(json.dumps(row, allow_nan=False)) == row
