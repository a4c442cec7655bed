"""The benchmark of FDSKL on a made-up table: its rows, its centralised loop, its picture."""

import json
from pathlib import Path

import numpy as np
import pytest

from securevfl.bench import fdskl
from securevfl.bench.fdskl_baselines import Split, dsg, fd_svrg, pp_svmv, squared
from securevfl.errors import DataError
from securevfl.models.kernel import Kernel
from securevfl.optim.fdskl import FDSKL


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """800 rows of 0 and 1 whose label no linear model finds."""
    X = np.random.default_rng(0).integers(0, 2, (800, 6))
    y = np.where(X[:, 0] ^ X[:, 3], 1, -1)
    np.savez(tmp_path / "phishing.npz", X=X.astype(np.uint8), y=y, g=np.arange(3), h=np.arange(3, 6))
    return tmp_path


def test_rows_and_picture(data: Path) -> None:
    rows = fdskl.run(data, quick=True)
    by = {(row["method"], row["protocol"], row["parties"]): row for row in rows}
    for chosen, parties in (("direct", 2), ("direct", 3), ("tree", 3), ("pairwise", 3)):
        row = by["FDSKL-p", chosen, parties]
        assert row["test_error"] < 0.05
        assert row["bytes"] > 0
        assert row["virtual_s"] > 0
        assert row["train_cpu_s"] > 0
        assert len(row["curve"]) == 40
    assert by["dsg", "", 1]["test_error"] < 0.05
    assert by["dsg, side g", "", 1]["test_error"] > 0.3
    assert by["fd-svrg (linear)", "", 2]["test_error"] > 0.3
    assert json.loads(json.dumps(rows)) == rows
    pytest.importorskip("matplotlib")
    fdskl.picture(rows, data / "error.png")
    assert (data / "error.png").stat().st_size > 1000


def test_a_missing_table_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="ijcnn1"):
        fdskl.run(tmp_path, names=["ijcnn1"])


def test_choosing_looks_at_training_rows_alone(data: Path) -> None:
    table, setting = fdskl.read(data, "phishing"), fdskl.SETTINGS["phishing"]
    first = fdskl.choose(table, setting, {"gamma": [0.01, 0.5], "rho": [1.0]})
    _, test = table.rows(0)
    table.y[test] = 1 - table.y[test]
    assert fdskl.choose(table, setting, {"gamma": [0.01, 0.5], "rho": [1.0]}) == first


def test_baselines() -> None:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(600, 4))
    y = np.where((X**2).sum(axis=1) > 3.4, 1.0, -1.0)
    split = Split(X[:400], y[:400], X[400:], y[400:])
    sides = [np.arange(2), np.arange(2, 4)]
    np.testing.assert_allclose(squared(X[:9], X[9:20]), ((X[:9, None] - X[None, 9:20]) ** 2).sum(axis=2), atol=1e-9)
    assert pp_svmv(split, sides, 0.3).error < 0.15
    model = Kernel(gamma=0.3, loss="smooth_hinge", blocks=2, block_size=128)
    assert dsg(split, model, FDSKL(), batch_size=100, epochs=20, seed=0).error < 0.15
    assert fd_svrg(split, sides).error > 0.25
    straight = Split(X[:400], np.sign(X[:400, 0]), X[400:], np.sign(X[400:, 0]))
    assert fd_svrg(straight, sides).error < 0.1
