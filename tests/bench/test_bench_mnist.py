"""The benchmark of rounds with convolutional parties, on made-up pictures."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")

from securevfl.bench import mnist
from securevfl.cli.main import app
from securevfl.errors import DataError


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Pictures of which the left or the right half is bright; odd where it is the left one."""
    generator = np.random.default_rng(0)
    y = generator.integers(0, 10, 160)
    X = generator.integers(0, 60, (160, 28, 28))
    X[:, :, :14] += np.where(y % 2, 150, 0)[:, None, None]
    X[:, :, 14:] += np.where(y % 2, 0, 150)[:, None, None]
    pixels = np.arange(784).reshape(28, 28)
    sides = {"g": pixels[:, :14].ravel(), "h": pixels[:, 14:].ravel()}
    np.savez(tmp_path / "mnist.npz", X=X.reshape(160, -1).astype(np.uint8), y=y, **sides)
    return tmp_path


def test_rows_are_of_algorithms_and_steps(data: Path) -> None:
    found = mnist.run(data, rows=160, width=1, dense=4, steps=(1, 3), rates=(0.003, 0.01), cap=12, batch=40)
    assert json.loads(json.dumps(found)) == found
    runs = [(row["algorithm"], row["q"], row["lr"]) for row in found]
    assert runs == [
        *(("FedSGD adam", 1, lr) for lr in (0.003, 0.01)),
        *((name, 3, lr) for lr in (0.003, 0.01) for name in ("FedBCD-p adam", "FedBCD-s adam")),
    ]
    best = max(found, key=lambda row: row["auc"] or 0)
    assert best["auc"] > 0.95
    assert 0 < best["to_0.95"] <= 12
    assert best["to_0.95"] % mnist.EVERY == 0


def test_without_pictures_it_says_where_they_were_expected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"mnist\.npz"):
        mnist.run(tmp_path)
    told = CliRunner().invoke(app, ["bench", "rounds", "--data", str(tmp_path), "--tables", "mnist"])
    assert told.exit_code != 0
