"""The benchmark of kept exchanges on few made-up clicks: its rows, what its figures mean, and that it goes on."""

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from securevfl.bench import celu
from securevfl.errors import ConfigError
from securevfl.runtime.clock import Network

SMALL = celu.Table(lambda data, rows: celu.clicks(rows).parties(), 1, 0.25, (0.3, 0.999))


@pytest.fixture
def setting(monkeypatch: pytest.MonkeyPatch) -> celu.Setting:
    monkeypatch.setitem(celu.TABLES, "clicks", SMALL)
    monkeypatch.setattr(celu, "GRID", (0.01, 0.03))
    monkeypatch.setattr(celu, "TIMED", 8)
    return celu.Setting(None, "clicks", "wide_deep", 1600, 2, batch=256, width=8)


def test_rows(setting: celu.Setting, tmp_path: Path) -> None:
    kept, said = tmp_path / "celu.json.runs", []
    rows = celu.rows_of(setting, celu.Runs(kept), Network(), said.append)
    assert json.loads(json.dumps(rows)) == rows
    assert [row["method"] for row in rows] == [*celu.METHODS] * 2
    easy, hard = rows[: len(celu.METHODS)], rows[len(celu.METHODS) :]
    for row in easy:
        assert 1 <= row["rounds"] <= 5
        assert row["rounds_sd"] >= 0
        assert row["tried"].keys() == {"0.01", "0.03"}
        assert row["virtual_s"] == pytest.approx(row["rounds"] * row["round_s"])
        assert row["round_s"] > 0.005
        assert 0.4 < row["auc"] < 0.9
    assert easy[0]["times_plain"] == easy[0]["rounds_of_plain"] == 1.0
    assert all(row["rounds"] is row["virtual_s"] is row["times_plain"] is None for row in hard)
    lines = kept.read_text().splitlines()
    assert celu.rows_of(setting, celu.Runs(kept), Network(), said.append) == rows
    assert kept.read_text().splitlines() == lines


def test_a_pipeline_hides_the_line_and_kept_exchanges_hide_local_steps(setting: celu.Setting) -> None:
    parties, slow = setting.parties(), Network(mbps=300, rtt_ms=400)
    seconds = {
        each: celu.round_seconds(setting, parties, each, slow) for each in ("plain", "pipeline", "fedbcd", "celu")
    }
    assert seconds["plain"] == pytest.approx(0.4, rel=0.25)
    assert seconds["pipeline"] == pytest.approx(0.4 / celu.DEPTH, rel=0.3)
    assert seconds["celu"] < seconds["fedbcd"] + 0.05


def test_reached_is_the_first_round_that_is_good_enough() -> None:
    curve = [(2, 0.6), (4, 0.71), (6, 0.69), (8, 0.75)]
    assert celu.reached(curve, 0.7) == 4
    assert celu.reached(curve, 0.75) == 8
    assert celu.reached(curve, 0.76) is None
    assert celu.reached([], 0.5) is None
    assert celu.toll(curve, (0.7, 0.75)) == 12
    assert celu.toll(curve, (0.7, 0.8)) == 4 + 16
    assert celu.toll([], (0.5,)) > celu.toll(curve, (0.9, 0.95))


def test_one_that_diverges_has_no_curve(setting: celu.Setting) -> None:
    assert celu.trained(setting, setting.parties(), "plain", 30.0, 0) == []


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="table must be one of clicks, default_credit, adult"):
        celu.run(None, ["iris"])
    with pytest.raises(ConfigError, match="network must be one of wide_deep, dssm"):
        celu.run(None, ["clicks"], ["deep"])
    with pytest.raises(ConfigError, match="the folder of the tables was expected"):
        celu.run(None, ["adult"])
