"""The benchmark of training on shares, at sizes that take seconds."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from securevfl.bench import shares
from securevfl.cli.main import app
from securevfl.errors import DataError

DATA = Path(__file__).parents[3] / "shared" / "data"


def test_a_size_has_work_ahead_apart_and_one_round_trip() -> None:
    row = shares.size(40, 4, epochs=2)
    assert row["round_trips"] == 1.0
    assert row["bytes_ahead"] > 0
    assert row["cpu_ahead_ms"] > 0
    assert row["bytes_visit"] == pytest.approx(40 * 64 * 5 + 40 * 6, rel=0.15)  # tables of L = 40 bits, delta, places


def test_scores_of_new_rows_are_timed() -> None:
    assert shares.prediction(200, 3)["seconds"] > 0


def test_a_table_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"phishing\.npz"):
        shares.read(tmp_path, "phishing")
    told = CliRunner().invoke(app, ["bench", "shares", "--data", str(tmp_path), "--tables", "nothing"])
    assert told.exit_code == 2


@pytest.mark.realdata
def test_a_table_trains_as_in_floats(tmp_path: Path) -> None:
    if not DATA.is_dir():
        pytest.skip("no real tables here")
    row = shares.table(DATA, "breast")
    assert abs(row["auc"] - row["auc_float"]) <= 0.002
    assert 0.4 < row["attack_auc"] < 0.6
    assert json.dumps(row)
