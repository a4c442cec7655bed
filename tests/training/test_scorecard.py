"""Scorecards: points of a row's bins add up to its score; each party writes its lines; other models are refused."""

from __future__ import annotations

import csv
import gzip
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import REAL_TABLES, raises_code
from sklearn.metrics import roc_auc_score
from typer.testing import CliRunner

import securevfl as vfl
from securevfl.cli.main import app
from securevfl.credit.scorecard import BASE, Scorecard, ScorecardScale
from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import ShareRing
from securevfl.errors import ConfigError
from securevfl.protocols.shares.fixed_point import FixedPointEncoding
from securevfl.protocols.shares.quantizer import Quantizer

N = 3000
DRAW = np.random.default_rng(4)
TOWN = DRAW.choice(["Ulm", "Bonn", "Jena"], N, p=[0.5, 0.3, 0.2])
OWN, OTHER = DRAW.normal(size=(N, 3)), DRAW.normal(size=(N, 2))
GAPS = np.where(DRAW.random(N) < 0.1, np.nan, OTHER[:, 1])
F = OWN @ [1.0, -0.5, 0.0] + OTHER @ [0.8, 0.5] + 0.7 * (TOWN == "Jena") - 1
Y = (DRAW.random(N) < 1 / (1 + np.exp(-F))).astype(int)


def parties_with_texts() -> list[vfl.Party]:
    pa = pytest.importorskip("pyarrow")
    shop = pa.table({"c": OTHER[:, 0], "gaps": GAPS, "town": TOWN})
    bank = pa.table({"a": OWN[:, 0], "b": OWN[:, 1], "idle": OWN[:, 2]})
    return [vfl.Party("bank", bank, Y, ids=range(N)), vfl.Party("shop", shop, ids=range(N))]


def train(**prepare: Any) -> vfl.Run:
    job = vfl.Job(
        model=vfl.Logistic(l2=1e-4), protocol="open", batch_size="all", epochs=20, prepare=prepare,
        accepts=["columns", "label_auc", "fresh_equations", "rank"],
    )  # fmt: skip
    return vfl.simulate(job, parties_with_texts())


def read(card: Scorecard, party: vfl.Party, row: int) -> float:
    """Return the points of a row, added up by the printed lines."""
    total = 0.0
    lines = [line for line in card.lines if line.party == party.name]
    for column in party.columns:
        at = party.columns.index(column)
        value = party.X[row, at]
        text = party.categories[column][int(value)] if column in party.categories and not np.isnan(value) else None
        column_points = {line.bin: line.points for line in lines if line.column == column}
        if text is not None:
            total += column_points.get(text, column_points.get("(other)", 0.0))
        elif np.isnan(value):
            total += column_points["(missing)"]
        elif any(label.startswith("[") for label in column_points):
            for name, points in column_points.items():
                if not name.startswith("["):
                    continue
                low, high = (float(bound) for bound in name[1:-1].split(", "))
                if low <= value < high:
                    total += points
        else:
            (unit,) = [points for name, points in column_points.items() if name.startswith("each unit")]
            total += column_points["at 0"] + value * unit
    return total


@pytest.mark.parametrize("prepare", [{"woe": {"bins": 5}}, {"bins": 4}, {"tails": "keep"}], ids=str)
def test_the_points_of_a_row_add_up_to_its_score(prepare: dict[str, Any]) -> None:
    run, members = train(**prepare), parties_with_texts()
    card = vfl.scorecard(run.parts, vfl.ScorecardScale(500, 20, 40))
    tables = {party.name: party.table for party in members}
    f = run.decision(tables)[:, 0]
    score = ScorecardScale(500, 20, 40).of(f)
    (base,) = [line.points for line in card.lines if line.column == BASE]
    for row in (0, 1, 2, 500, int(np.flatnonzero(np.isnan(GAPS))[0]), *range(1000, 1040)):
        assert base + sum(read(card, party, row) for party in members) == pytest.approx(score[row], abs=0.05)
    assert roc_auc_score(Y, -score) == pytest.approx(run.metrics["auc"], abs=1e-9)
    assert ScorecardScale(500, 20, 40).of(np.array([-np.log(20), -np.log(40)])) == pytest.approx([500, 540])


def test_each_party_makes_its_own_lines_from_its_file(tmp_path: Path) -> None:
    run = train(woe={"bins": 5})
    run.save(tmp_path)
    expected = [(line.party, line.column, line.bin) for line in vfl.scorecard(run.parts).lines]
    lines = []
    for name in ("bank", "shop"):
        out, page = tmp_path / f"{name}.csv", tmp_path / f"{name}.html"
        words = ["scorecard", str(tmp_path / f"{name}.json"), "--csv", str(out), "--html", str(page)]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        rows = list(csv.DictReader(io.StringIO(out.read_text())))
        lines += [(row["party"], row["column"], row["bin"]) for row in rows]
        assert all(abs(int(row["points"]) - float(row["exact"])) <= 0.5 for row in rows)
        assert f"{float(rows[-1]['exact']):.2f}".rstrip("0") in page.read_text()
    assert lines == expected
    assert not any(column == BASE for party, column, _ in lines if party == "shop")
    vfl.scorecard(run.parts).save(tmp_path / "card.html")
    assert "<h1>Scorecard</h1>" in (tmp_path / "card.html").read_text()
    wrong = CliRunner().invoke(app, ["scorecard", str(tmp_path / "bank.json"), "--points", "600"])
    assert wrong.exit_code == 2
    assert "POINTS:ODDS:DOUBLE" in wrong.output


def test_models_without_points_are_told() -> None:
    members = vfl.datasets.breast_cancer(parties=2)
    keys: dict[str, Any] = {"batch_size": "all", "epochs": 12, "accepts": ["columns", "rank"]}
    square = vfl.simulate(vfl.Job(model=vfl.SmoothHinge(), protocol="open", **keys), members)
    with raises_code(ConfigError, "SVFL-MODEL-UNSUPPORTED"):
        vfl.scorecard(square.parts)
    steps = vfl.BlockDescent()
    shared = vfl.Job(model=vfl.Logistic(), optimizer=steps, protocol=vfl.Protocol(shares=vfl.Shares()), **keys)
    with raises_code(ConfigError, "SVFL-MODEL-NO-WEIGHTS", party="bank"):
        vfl.scorecard(vfl.simulate(shared, members).parts)
    tails = vfl.Job(model=vfl.Logistic(), protocol="open", prepare={"tails": "squash"}, **keys)
    far = np.array(members[1].X)
    far[0] *= 1e6
    moved = [members[0], vfl.Party("shop", far, ids=members[1].ids, columns=members[1].columns)]
    with raises_code(ConfigError, "SVFL-MODEL-UNSUPPORTED"):
        vfl.scorecard(vfl.simulate(tails, moved).parts)


@pytest.mark.slow
@pytest.mark.realdata
@pytest.mark.skipif(not REAL_TABLES.is_dir(), reason="needs the real tables")
def test_points_rank_like_the_model_on_credit() -> None:
    tables = {}
    for side in ("guest", "host"):
        with gzip.open(REAL_TABLES / f"default_credit_hetero_{side}.csv.gz", "rt") as file:
            tables[side] = np.array(list(csv.reader(file))[1:], dtype=np.float64)
    guest, host = tables["guest"], tables["host"]
    members = [
        vfl.Party("bank", guest[:, 2:], guest[:, 1], ids=guest[:, 0]),
        vfl.Party("shop", host[:, 1:], ids=host[:, 0]),
    ]
    job = vfl.Job(
        model=vfl.Logistic(l2=1e-4), protocol="open", batch_size="all", epochs=10, prepare={"woe": {}},
        test_fraction=0.25, accepts=["columns", "label_auc", "fresh_equations", "rank"],
    )  # fmt: skip
    run = vfl.simulate(job, members)
    card = vfl.scorecard(run.parts)
    test_rows = job.schedule(members[0].register).test
    new = [party.take(test_rows) for party in members]
    (base,) = [line.points for line in card.lines if line.column == BASE]
    points = [base + sum(read(card, party, row) for party in new) for row in range(len(test_rows))]
    assert roc_auc_score(new[0].y, -np.array(points)) == pytest.approx(run.metrics["auc"], abs=0.001)
    lines = list(csv.DictReader(io.StringIO(card.csv())))
    rounded_lines = tuple(
        replace(exact, points=float(line["points"])) for exact, line in zip(card.lines, lines, strict=True)
    )
    rounded = [
        sum(read(Scorecard(rounded_lines, card.scale), party, row) for party in new) for row in range(len(test_rows))
    ]
    print(run.metrics["auc"], roc_auc_score(new[0].y, -np.array(rounded)))
    assert roc_auc_score(new[0].y, -np.array(rounded)) == pytest.approx(run.metrics["auc"], abs=0.002)
    f = run.decision({party.name: party.table for party in new})[:, 0]
    draws = Prg(bytes(32), "shares of a test"), Prg(bytes(32), "dither of a test")  # the same in every run
    for step, auc in ((-2, 0.7669), (-1, 0.7591)):
        aucs = [roc_auc_score(new[0].y, -ScorecardScale().of(levelled(f, step, *draws))) for _ in range(5)]
        assert np.mean(aucs) == pytest.approx(auc, abs=0.004)  # as docs/scorecard.md states


def levelled(f: Any, step: int, shares: Prg, dithers: Prg) -> Any:
    """Return f in levels 2^step apart, as two share holders round and open it."""
    numbers, levels = FixedPointEncoding(256, 0.1), Quantizer(step, 6 - step)
    ring = ShareRing(numbers.bits)
    rounded = ring.of(np.rint(f * 2.0 ** (numbers.f_x + numbers.f_theta)).astype(np.int64))
    share = ring.uniform(shares, rounded.shape)
    dither = dithers.array(rounded.shape, np.uint64) >> np.uint64(64 - levels.shift(numbers))
    other = ring.reduce(ring.reduce(rounded - share) + dither)
    return levels.dequantize(levels.truncate(numbers, share) + levels.truncate(numbers, other), rounded_down=1)


def test_a_date_in_a_job_with_bins_is_to_be_left_out() -> None:
    """Bins do not change dates, so that more bins are no remedy."""
    draw = np.random.default_rng(0)
    X = np.empty((400, 2), dtype=object)
    X[:, 0] = draw.normal(size=400)
    X[:, 1] = [f"2024-{1 + k % 12:02d}-{1 + k % 28:02d}" for k in range(400)]
    y = (X[:, 0].astype(float) + draw.normal(size=400) > 0).astype(int)
    bank = vfl.Party("bank", X, y, aligned=True, columns=["x", "since"])
    shop = vfl.Party("shop", draw.normal(size=(400, 2)), aligned=True)
    shares = vfl.Shares(open_weights=("bank", "shop"))
    job = vfl.Job(model=vfl.Logistic(), protocol=vfl.Protocol(shares=shares), prepare={"bins": 10}, epochs=10)
    with raises_code(ConfigError, "SVFL-MODEL-UNSUPPORTED", column="since"):
        vfl.scorecard(vfl.simulate(job, [bank, shop]).parts)
    without = job.model_copy(update={"prepare": job.prepare.model_copy(update={"drop": ("since",)})})
    assert vfl.scorecard(vfl.simulate(without, [bank, shop]).parts)


@pytest.mark.parametrize("option", ["odds", "double"])
def test_a_scale_has_positive_odds_and_finite_points(option: str) -> None:
    for wrong in (0.0, -1.0, np.nan, np.inf):
        with raises_code(ConfigError, "SVFL-JOB-OPTION"):
            ScorecardScale(**{option: wrong})
    assert vars(ScorecardScale(**{option: 1e-3}))[option] == 1e-3
    for wrong in (np.nan, np.inf, -np.inf):
        with raises_code(ConfigError, "SVFL-JOB-OPTION"):
            ScorecardScale(points=wrong)
    assert ScorecardScale(points=-5.0).points == -5
