"""`securevfl bench credit-ftl`: rows of every engine asked for, whose model reaches what the open one reached."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from securevfl.bench import credit_ftl
from securevfl.cli.main import app


def test_rows_are_of_engines_steps_and_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, 160)
    X = rng.integers(0, 99, (160, 784)) * (rng.random(784) < 0.02) + 80 * (y % 2)[:, None] * (np.arange(784) % 30 == 7)
    np.savez(tmp_path / "mnist.npz", X=X.astype(np.uint8), y=y)
    monkeypatch.setattr(credit_ftl, "ETAS", (1.0, 4.0))
    monkeypatch.setattr(credit_ftl, "MOST", 6)
    out = tmp_path / "out.json"
    own = ["--table", "mnist", "--engines", "open,ckks", "--overlap", "60", "--units", "2", "--steps", "1,3"]
    done = CliRunner().invoke(
        app, ["bench", "credit-ftl", "--data", str(tmp_path), *own, "--targets", "0.8,1.5", "--json", str(out)]
    )
    assert done.exit_code == 0, done.output
    rows = json.loads(out.read_text())["rows"]
    assert {(row["engine"], row["q"], row["auc_target"]) for row in rows} == {
        (engine, q, 0.8) for engine in ("open", "ckks") for q in (1, 3)
    }
    for row in rows:
        assert row["auc"] >= 0.8
        assert row["total_s"] > row["comm_s"] > 0
        assert row["values_sent_per_round"] == 60 * 2 + 3
