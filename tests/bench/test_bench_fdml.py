"""The benchmark of FDML on a made-up table, and its bars on the real one."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from securevfl.bench import fdml
from securevfl.cli.main import app
from securevfl.errors import ConfigError, DataError

REAL = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """1,200 rows of 24 columns of -1 and 1, and labels that go with their sum."""
    generator = np.random.default_rng(0)
    X = 2 * generator.integers(0, 2, (1200, 24)) - 1
    y = np.where(X.sum(axis=1) + 4 * generator.normal(size=1200) > 0, 1, 0)
    np.savez(tmp_path / "a9a.npz", X=X.astype(np.int8), y=y, g=np.arange(12), h=np.arange(12, 24))
    monkeypatch.setattr(fdml, "BATCH", 64)
    monkeypatch.setattr(fdml, "EVERY", 7)
    monkeypatch.setattr(fdml, "STEP", 0.5)
    return tmp_path


def test_rows(data: Path) -> None:
    options = ["--data", str(data), "--quick", "--repetitions", "1", "--json", str(data / "fdml.json")]
    done = CliRunner().invoke(app, ["bench", "fdml", *options])
    assert done.exit_code == 0, done.output
    written = json.loads((data / "fdml.json").read_text())
    rows = written["rows"]
    assert written["schema"] == fdml.SCHEMA
    assert len(done.stdout.splitlines()) == len(rows)
    assert {tuple(row) for row in rows} == {("method", "setting", "dataset", "auc", "auc_sd", "rounds", "virtual_s")}
    assert len(rows) == 2 * (2 + len(fdml.PLAIN))
    assert len({(row["method"], row["setting"], row["dataset"]) for row in rows}) == len(rows)
    pooled, alone, *trained = rows[: len(rows) // 2]
    assert (pooled["method"], alone["method"]) == ("linear, pooled", "linear, alone")
    assert pooled["auc"] > alone["auc"] + 0.05
    assert alone["rounds"] is None
    for row in trained:
        assert row["auc"] > pooled["auc"] - 0.03
        if row["rounds"] is not None:
            assert row["rounds"] >= 7
            assert row["virtual_s"] > 0


def test_what_is_not_there_is_named(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="table must be one of a9a-2, a9a-3"):
        fdml.run(data, ["a9a-7"])
    with pytest.raises(DataError, match=r"a9a\.npz"):
        fdml.run(tmp_path / "nowhere", ["a9a-2"])


@pytest.mark.realdata
@pytest.mark.skipif(not REAL.is_dir(), reason="no real tables beside the checkout")
@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_bars_on_a9a(count: int) -> None:
    """Within .007 of the pooled columns, .05 above the best party alone; a slow one costs .6 of going in step."""
    parties = fdml.split(REAL, count)
    pooled = fdml.central("linear", parties, 0)
    alone = max(fdml.central("linear", [own], 0, parties[0]) for own in parties)
    step = fdml.train(fdml.Setting("linear", 0, slow=True), parties, 0)
    apart = fdml.train(fdml.Setting("linear", 8, slow=True, first=False), parties, 0)
    for run in (step, apart):
        assert run.metrics["auc"] > pooled - fdml.WITHIN
        assert run.metrics["auc"] > alone + 0.05
    one, other = (fdml.first(run, pooled - fdml.WITHIN) for run in (apart, step))
    assert one is not None
    assert other is not None
    assert one[1] <= 0.6 * other[1]


@pytest.mark.realdata
@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_dir(), reason="no real tables beside the checkout")
def test_networks_on_a9a() -> None:
    """The gap of Table I: .0081."""
    pytest.importorskip("torch")
    parties = fdml.split(REAL, 2)
    pooled = fdml.central("network", parties, 0)
    alone = max(fdml.central("network", [own], 0, parties[0]) for own in parties)
    auc = fdml.train(fdml.Setting("network", 8), parties, 0).metrics["auc"]
    assert auc > pooled - 0.0081
    assert auc > alone + 0.05


@pytest.mark.realdata
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not REAL.is_dir(), reason="no real tables beside the checkout")
@pytest.mark.parametrize("setting", fdml.SEALED, ids=lambda setting: setting.name)
def test_under_encryption_it_is_the_same(setting: fdml.Setting) -> None:
    parties = fdml.split(REAL, 2)
    plain = fdml.Setting("linear", setting.tau, residual=setting.residual and "open")
    aucs = [fdml.train(each, parties, 0).metrics["auc"] for each in (setting, plain)]
    assert abs(aucs[0] - aucs[1]) < 1e-3
