"""Drift: columns that the test has shifted are found, and no others; the figures equal those of scipy."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import raises_code, write_table
from scipy import stats
from typer.testing import CliRunner

import securevfl as vfl
from securevfl.base.checked_files import read_checked_json
from securevfl.cli.main import app
from securevfl.cli.prediction_output import write_predictions
from securevfl.credit.drift import MIN_NEW_ROWS, SHIFTED, STABLE, Drift, measure_drift
from securevfl.credit.drift_page import drift
from securevfl.credit.two_samples import chi_square_p, kolmogorov_p, population_stability_index, share_difference_p
from securevfl.data.baseline import MAX_BASELINE_ROWS, SCORE_COLUMN, Baseline, baselines, categorical_baseline
from securevfl.data.columns import Columns, columns_of
from securevfl.data.read_options import ReadOptions
from securevfl.errors import DataError, TableError
from securevfl.organisations.prediction import prediction_of
from securevfl.training.model_part import PART_SCHEMA, ModelPart
from securevfl.training.new_rows import IndexedRows, rows_of_file

N, M = 6000, 3000
NAMES = ["a", "b", "flag", "skewed", "gaps", "town"]
TOWNS = np.array(["Ulm", "Bonn", "Jena", "Trier"])


def mixed_columns(n: int, seed: int) -> Columns:
    draw = np.random.default_rng(seed)
    flag = (draw.random(n) < 0.2).astype(float)
    gaps = np.where(draw.random(n) < 0.1, np.nan, draw.normal(size=n))
    town = draw.choice(4, n, p=[0.4, 0.3, 0.2, 0.1]).astype(float)
    X = np.column_stack([draw.normal(size=n), draw.normal(size=n), flag, draw.exponential(size=n), gaps, town])
    return Columns(X, NAMES, {"town": tuple(TOWNS.tolist())})


KEPT = baselines(mixed_columns(N, 0), np.arange(N))


def shifted(new: Columns) -> set[str]:
    return {drift.column for drift in measure_drift(KEPT, new) if drift.shifted}


@pytest.mark.parametrize("column", NAMES)
def test_the_column_that_was_shifted_is_found_and_no_other(column: str) -> None:
    new = mixed_columns(M, 1)
    at = NAMES.index(column)
    if column == "town":
        new.X[: M // 8, at] = 3
    elif column == "gaps":
        new.X[: M // 20, at] = np.nan
    elif column == "flag":
        new.X[: M // 20, at] = 1
    else:
        new.X[:, at] = new.X[:, at] * 1.1 + 0.15
    assert shifted(new) == {column}


def test_false_alarms_are_as_many_as_is_said() -> None:
    """Of 300 tables like the training's, about 1 % have a reported column; more than 9 have probability 1e-3."""
    alarms = sum(bool(shifted(mixed_columns(1000, seed))) for seed in range(100, 400))
    assert alarms <= 9


def test_figures_are_scipys() -> None:
    draw = np.random.default_rng(5)
    one, other = draw.normal(size=700), draw.normal(0.1, 1, size=500)
    exact = stats.ks_2samp(one, other, method="asymp")
    (drift,) = measure_drift(baselines(Columns(one[:, None], ["x"]), np.arange(700)), Columns(other[:, None], ["x"]))
    assert drift.ks is not None
    assert exact.statistic - 0.02 <= drift.ks <= exact.statistic  # at a hundred points
    assert kolmogorov_p(0.08, 700, 500) == pytest.approx(stats.kstwobign.sf(0.08 * (700 * 500 / 1200) ** 0.5), rel=0.15)
    a, b = np.array([100.0, 50, 30, 7]), np.array([70.0, 66, 30, 9])
    assert chi_square_p(a, b) == pytest.approx(stats.chi2_contingency([a, b], correction=False).pvalue, rel=0.02)
    share, new = np.full(10, 0.1), np.histogram(other, np.quantile(one, np.linspace(0, 1, 11)))[0] / 500
    assert drift.psi == pytest.approx(float(((new - share) * np.log(new / share)).sum()), abs=0.03)


@pytest.mark.parametrize(("many", "few"), [(10_000, 60), (400, 300), (60, 55)])
def test_tests_of_two_samples_do_not_depend_on_their_order(many: int, few: int) -> None:
    """Tables differ in size by up to a factor of 170, and some cells have few rows or none."""
    draw = np.random.default_rng(many)
    shares = np.array([0.6, 0.3, 0.09, 0.009, 0.001, 0.0])
    for _ in range(20):
        old, new = (draw.multinomial(rows, shares).astype(float) for rows in (many, few))
        assert chi_square_p(old, new) == pytest.approx(chi_square_p(new, old), rel=1e-9)
        assert population_stability_index(old, new) == pytest.approx(population_stability_index(new, old), rel=1e-9)
        hits = int(old[1]), int(new[1])
        assert share_difference_p(hits[0], many, hits[1], few) == pytest.approx(
            share_difference_p(hits[1], few, hits[0], many), rel=1e-9
        )
        assert kolmogorov_p(0.07, many, few) == kolmogorov_p(0.07, few, many)


def test_unseen_texts_are_told() -> None:
    new = mixed_columns(M, 3)
    new.X[:600, 5] = 4
    drift = measure_drift(KEPT, Columns(new.X, NAMES, {"town": (*TOWNS.tolist(), "Rom")}))[-1]
    assert drift.shifted
    assert drift.unseen == pytest.approx(0.2)
    assert drift.size == "large"


def test_tables_that_cannot_be_compared_are_told() -> None:
    with raises_code(TableError, "SVFL-TABLE-COLUMNS"):
        measure_drift(KEPT, Columns(mixed_columns(M, 1).X[:, :5], NAMES[:5]))
    with raises_code(TableError, "SVFL-TABLE-TOO-FEW-ROWS"):
        measure_drift(KEPT, mixed_columns(20, 1))
    with raises_code(TableError, "SVFL-MODEL-UNSUPPORTED"):
        measure_drift([], mixed_columns(M, 1))


def test_a_sorted_table_is_not_judged_by_its_top() -> None:
    X = np.arange(60_000.0)[:, None]
    parties = [vfl.Party("bank", X % 7, (X[:, 0] % 2).astype(int), aligned=True), vfl.Party("shop", X, aligned=True)]
    job = vfl.Job(model=vfl.Logistic(), protocol="open", batch_size="all", epochs=1, accepts=["columns"])
    baseline = vfl.simulate(job, parties).parts["shop"].baseline[0]
    assert baseline.rows == MAX_BASELINE_ROWS < 59_000
    assert baseline.points[0] < 1_000
    assert baseline.points[-1] > 59_000


def write(path: Path, columns: list[str], X: np.ndarray) -> Path:
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["id", *columns])
        lines.writerows([k, *row] for k, row in enumerate(X.tolist()))
    return path


def test_the_command_from_training_to_page(tmp_path: Path) -> None:
    parties = vfl.datasets.breast_cancer(parties=2)
    job = vfl.Job(model=vfl.Logistic(), protocol="open", batch_size="all", epochs=3, accepts=["columns"])
    run = vfl.simulate(job, parties)
    run.save(tmp_path)
    shop, at = parties[1], 4
    same = write(tmp_path / "same.csv", shop.columns, shop.X)
    moved = np.array(shop.X)
    moved[:, at] *= 1.4
    other = write(tmp_path / "moved.csv", shop.columns, moved)
    model = str(tmp_path / "shop.json")
    assert CliRunner().invoke(app, ["drift", model, "--data", str(same)]).exit_code == 0
    page, figures = tmp_path / "drift.html", tmp_path / "drift.json"
    words = ["drift", model, "--data", str(other), "--html", str(page), "--json", str(figures)]
    shifted = CliRunner().invoke(app, words)
    assert shifted.exit_code == 1
    values = json.loads(figures.read_text())
    assert values["shifted"] == [shop.columns[at]]
    psi = next(item["psi"] for item in values["columns"] if item["column"] == shop.columns[at])
    assert f"{psi:.4g}" in page.read_text()
    proba = run.predict_proba({party.name: party.X for party in parties})[:, 1]
    scores = write(tmp_path / "predictions.csv", ["probability"], proba[:, None])
    bank = write(tmp_path / "bank.csv", parties[0].columns, parties[0].X)
    words = ["drift", str(tmp_path / "bank.json"), "--data", str(bank), "--scores", str(scores)]
    assert "(score)" in CliRunner().invoke(app, words).output
    refused = CliRunner().invoke(app, ["drift", model, "--data", str(same), "--scores", str(scores)])
    assert refused.exit_code == 2
    assert "[SVFL-MODEL-UNSUPPORTED]" in refused.output
    assert "--scores" in refused.output


def test_scores_per_unit_of_exposure_do_not_shift(tmp_path: Path) -> None:
    draw = np.random.default_rng(5)
    ages, visits, years = draw.normal(size=N), draw.normal(size=N), draw.uniform(1, 20, N)
    y = draw.poisson(years * np.exp(0.3 * ages - 0.3 * visits)).astype(float)
    job = vfl.Job(
        model="poisson", exposure="years", protocol="open", batch_size="all", epochs=5, accepts=["columns", "rank"]
    )
    bank = vfl.Party("bank", np.column_stack([ages, years]), y, columns=["a", "years"], ids=range(N))
    run = vfl.simulate(job, [bank, vfl.Party("shop", visits[:, None], columns=["b"], ids=range(N))])
    rates = run.predict({"bank": ages[:, None], "shop": visits[:, None]})
    table = write(tmp_path / "bank.csv", ["a"], ages[:, None])
    scores = write(tmp_path / "predictions.csv", ["prediction"], rates[:, None])
    assert not {item.column for item in drift(run.parts["bank"], table, scores=scores) if item.shifted}


def test_parts_of_other_schemas_are_refused(tmp_path: Path) -> None:
    parties = vfl.datasets.breast_cancer(parties=2)
    job = vfl.Job(model=vfl.Logistic(), protocol="open", batch_size="all", epochs=1, accepts=["columns"])
    vfl.simulate(job, parties).save(tmp_path)
    path = tmp_path / "shop.json"
    now, _ = read_checked_json(path)
    assert ModelPart.load(path).baseline == [Baseline(**item) for item in now["baseline"]]
    assert now["schema"] == PART_SCHEMA
    for schema in ("securevfl.part/1", "securevfl.part/5", "securevfl.part/9", "another", None):
        path.write_text(json.dumps(now | {"schema": schema}))
        with raises_code(DataError, "SVFL-MODEL-FILE") as caught:
            ModelPart.load(path)
        assert PART_SCHEMA in str(caught.value)


def test_columns_come_by_name() -> None:
    new = mixed_columns(M, 2)
    order = [3, 1, 0, 2, 4, 5]
    mixed = Columns(new.X[:, order], [NAMES[j] for j in order], new.categories)
    assert {drift.column: drift.psi for drift in measure_drift(KEPT, mixed)} == {
        drift.column: drift.psi for drift in measure_drift(KEPT, new)
    }
    assert columns_of("shop", new.X[:, :5], NAMES[:5]).names == NAMES[:5]


def test_psi_gives_every_part_half_a_row_more() -> None:
    """So a part without rows in one table counts, and a part without rows in both does not."""
    training, other = np.array([30.0, 70.0, 0.0, 0.0]), np.array([50.0, 40.0, 10.0, 0.0])
    p, q = np.array([30.5, 70.5, 0.5]) / 101.5, np.array([50.5, 40.5, 10.5]) / 101.5
    assert population_stability_index(training, other) == pytest.approx(((q - p) * np.log(q / p)).sum())
    assert population_stability_index(training, training) == 0.0


def test_as_few_rows_as_are_asked_for_are_compared() -> None:
    assert measure_drift(KEPT, mixed_columns(MIN_NEW_ROWS, 5))
    with raises_code(TableError, "SVFL-TABLE-TOO-FEW-ROWS"):
        measure_drift(KEPT, mixed_columns(MIN_NEW_ROWS - 1, 5))


@pytest.mark.parametrize(("few", "others", "compared"), [(2, 7, False), (3, 7, True), (97, 94, False), (97, 93, True)])
def test_shares_are_compared_from_ten_rows_on_either_side(few: int, others: int, compared: bool) -> None:
    """With 100 rows in each table, ten rows with the value and ten rows without it are enough."""
    p = share_difference_p(few, 100, others, 100)
    pooled = (few + others) / 200
    z = abs(few - others) / 100 / np.sqrt(pooled * (1 - pooled) * 2 / 100)
    assert p == (pytest.approx(2 * stats.norm.sf(z)) if compared else 1.0)


@pytest.mark.parametrize(
    ("training", "new"),
    [
        (np.full(400, 7.0), np.full(200, 5.0)),
        (np.full(400, 7.0), np.full(200, 9.0)),
        (np.zeros(400), np.full(200, -999.0)),
        (np.arange(400) % 2, np.full(200, 0.5)),  # between two values that it had
        (np.arange(400) % 2, np.arange(200) % 2 - 1000.0 * (np.arange(200) < 60)),
        (np.linspace(0, 1, 4000), np.where(np.arange(2000) < 300, -1.0, np.linspace(0, 1, 2000))),
        (np.linspace(0, 1, 4000), np.where(np.arange(2000) < 300, 2.0, np.linspace(0, 1, 2000))),
        (np.linspace(0, 1, 4000), np.full(2000, 0.0)),
    ],
)
def test_both_ends_are_open(training: np.ndarray, new: np.ndarray) -> None:
    """Values below, above and between the observed values count in all figures, also if all signs change."""
    half = np.random.default_rng(1).permutation(training)[: len(training) // 2]
    for sign in (1.0, -1.0):
        (base,) = baselines(Columns(sign * training[:, None].astype(float), ["x"]), np.arange(len(training)))
        (drift,) = measure_drift([base], Columns(sign * new[:, None], ["x"]))
        assert drift.shifted
        assert drift.psi > 0.25
        assert drift.ks == pytest.approx(stats.ks_2samp(training, new).statistic, abs=0.012)
        (same,) = measure_drift([base], Columns(sign * half[:, None].astype(float), ["x"]))
        assert not same.shifted
        assert same.psi < 0.02


@pytest.mark.parametrize("lacking", [1, 150, 450])
@pytest.mark.parametrize("kind", ["numbers", "flags", "texts"])
def test_a_copy_of_the_training_rows_has_no_difference(lacking: int, kind: str) -> None:
    """For any share of missing values, p is near 1 and PSI is near 0."""
    values = np.random.default_rng(lacking).permutation(500).astype(float)
    block = np.where(values < lacking, np.nan, {"numbers": values, "flags": values % 2, "texts": values % 4}[kind])
    texts = {"x": tuple(TOWNS.tolist())} if kind == "texts" else {}
    old, new = (Columns(np.tile(block, times)[:, None], ["x"], texts) for times in (4, 1))
    (drift,) = measure_drift(baselines(old, np.arange(2000)), new)
    assert drift.missing == drift.was_missing == lacking / 500
    assert drift.p > 0.9
    assert drift.psi == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize("id_column", ["id", "customer", "who,day", "who,"])
def test_the_scores_have_the_ids_of_the_table(id_column: str, tmp_path: Path) -> None:
    """In the file that `predict` writes, for ids of every kind, with reason codes that all rows lack."""
    parties = vfl.datasets.breast_cancer(parties=2)
    job = vfl.Job(model=vfl.Logistic(), protocol="open", batch_size="all", epochs=1, accepts=["columns"])
    run = vfl.simulate(job, parties)
    part, bank = run.parts["bank"], parties[0]
    names = id_column.strip(",").split(",")
    ids = {name: [f"{name} {row // (1 + len(names))} {row}" for row in range(len(bank))] for name in names}
    table = write_table(tmp_path / "bank.csv", ids | dict(zip(bank.columns, bank.X.T, strict=True)))
    rows = rows_of_file(part, table, ReadOptions(id_column=id_column))
    f = run.decision_of({party.name: run.parts[party.name].scaling(party.X) for party in parties}, "bank")
    codes = {"shop": [[""]] * len(f)}
    with write_predictions(part, tmp_path / "p.csv", rows=rows) as callbacks:
        callbacks["on_block"](IndexedRows.of("bank", rows).ids, replace(prediction_of(part, f), reasons=codes))
    drifts = drift(part, table, scores=tmp_path / "p.csv", options=ReadOptions(id_column=id_column))
    assert drifts[-1].column == SCORE_COLUMN
    assert not drifts[-1].shifted
    with raises_code(TableError, "SVFL-FILE-WRONG-KIND"):
        drift(part, table, scores=table, options=ReadOptions(id_column=id_column))


@pytest.mark.parametrize("columns", [1, 2, 5])
@pytest.mark.parametrize("moved", [0.08, 0.12, 0.2])
def test_a_column_is_shifted_below_its_part_of_the_alarms(columns: int, moved: float) -> None:
    """Each column has two tests, and all of them share the probability of a false alarm."""
    old, new = (np.random.default_rng(seed).normal(size=(800, columns)) for seed in (1, 2))
    new[:, -1] = old[:, -1] + moved
    names = [f"x{j}" for j in range(columns)]
    table, summaries = Columns(new, names), baselines(Columns(old, names), np.arange(len(old)))
    p = measure_drift(summaries, table)[-1].p
    for factor, expected in ((1 - 1e-6, False), (1 + 1e-6, True)):
        assert measure_drift(summaries, table, alarms=factor * p * 2 * columns)[-1].shifted == expected


@pytest.mark.parametrize(("edge", "below", "at"), [(STABLE, "stable", "some"), (SHIFTED, "some", "large")])
def test_the_words_for_a_shift_change_at_their_limits(edge: float, below: str, at: str) -> None:
    drifts = [Drift("x", psi, None, 1.0, 0.0, 0.0, 0.0, False) for psi in (np.nextafter(edge, 0), edge)]
    assert [drift.size for drift in drifts] == [below, at]


def test_texts_beyond_the_counted_ones_are_not_called_new() -> None:
    """The summary does not contain rare texts of the training, so a text without a count may be one of them."""
    towns = np.repeat(np.arange(4.0), [40, 30, 20, 10])
    new = Columns(np.repeat([0.0, 3.0, 4.0], [60, 30, 10])[:, None], ["town"], {"town": (*TOWNS.tolist(), "Rom")})
    for counted, unseen in ((4, 0.1), (3, 0.0)):
        summary = categorical_baseline("town", towns, tuple(TOWNS.tolist()), counted)
        assert (summary.others > 0) == (counted < 4)
        assert measure_drift([summary], new)[0].unseen == pytest.approx(unseen)
