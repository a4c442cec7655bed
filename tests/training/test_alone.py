"""The model of the label party's columns alone in a report, for each kind of model, against scikit-learn."""

from __future__ import annotations

import json
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from builders import labels_for, random_blocks
from sklearn.linear_model import (
    GammaRegressor,
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    QuantileRegressor,
)
from sklearn.metrics import (
    log_loss,
    mean_gamma_deviance,
    mean_pinball_loss,
    mean_poisson_deviance,
    r2_score,
    roc_auc_score,
)
from sklearn.model_selection import KFold
from sklearn.multiclass import OneVsRestClassifier

import securevfl as vfl
from securevfl.cli.run_output import metrics_table
from securevfl.data.party import register_of
from securevfl.errors import DataNotice
from securevfl.runtime.network import Network
from securevfl.training.json_report import report
from securevfl.training.local_baseline import LocalQuality, baseline_figures

BLOCKS = random_blocks(2, 2000, 3, seed=8)
ACCEPTED = ["columns", "rank", "label_auc", "fresh_equations"]
CASES: dict[str, tuple[Any, Any, Any, str, Any]] = {
    "logistic": (vfl.Logistic(), LogisticRegression(C=1e6), 2, "log_loss", log_loss),
    "square": (vfl.Square(), LinearRegression(), "numbers", "r2", r2_score),
    "quantile": (
        vfl.Quantile(quantile=0.8),
        QuantileRegressor(quantile=0.8, alpha=0),
        "numbers",
        "pinball",
        lambda y, predicted: mean_pinball_loss(y, predicted, alpha=0.8),
    ),
    "poisson": (vfl.Poisson(), PoissonRegressor(alpha=0, max_iter=1000), "counts", "deviance", mean_poisson_deviance),
    "gamma": (vfl.Gamma(), GammaRegressor(alpha=0, max_iter=1000), "amounts", "deviance", mean_gamma_deviance),
}


@pytest.mark.parametrize("protocol", ["shares", "open"])
@pytest.mark.parametrize("name", CASES)
def test_the_baseline_is_that_of_scikit_learn(name: str, protocol: str) -> None:
    model, oracle, kind, metric, measure = CASES[name]
    y = labels_for(BLOCKS, kind)
    keys: dict[str, Any] = {"protocol": protocol, "accepts": ACCEPTED} if protocol == "open" else {}
    job = vfl.Job(model=model, test_fraction=0.25, **keys)
    bank = vfl.Party("bank", BLOCKS[0], y, ids=range(2000))
    rows = job.schedule(register_of([bank]))
    fitted = oracle.fit(BLOCKS[0][rows.train], y[rows.train])
    predicted = (fitted.predict_proba if name == "logistic" else fitted.predict)(BLOCKS[0][rows.test])
    baseline = baseline_figures(job, bank)
    assert baseline is not None
    assert baseline.std_errors[metric] > 0
    assert baseline.metrics[metric] == pytest.approx(measure(y[rows.test], predicted), rel=0.01)


@pytest.mark.parametrize("model", [vfl.Softmax(), vfl.OneVsRest()])
def test_the_baseline_of_several_classes_is_that_of_scikit_learn(model: Any) -> None:
    y = labels_for(BLOCKS, 3)
    sealed: dict[str, Any] = {"protocol": "ckks", "accepts": ACCEPTED} if model == vfl.Softmax() else {}
    job = vfl.Job(model=model, test_fraction=0.25, **sealed)
    bank = vfl.Party("bank", BLOCKS[0], y, ids=range(2000))
    rows = job.schedule(register_of([bank]))
    classifier = LogisticRegression(C=1e6)
    classifier = classifier if model == vfl.Softmax() else OneVsRestClassifier(classifier)
    predicted = classifier.fit(BLOCKS[0][rows.train], y[rows.train]).predict_proba(BLOCKS[0][rows.test])
    baseline = baseline_figures(job, bank)
    assert baseline is not None
    area = roc_auc_score(y[rows.test], predicted, multi_class="ovr")
    assert baseline.metrics["auc"] == pytest.approx(area, abs=0.003)
    assert baseline.metrics["log_loss"] == pytest.approx(log_loss(y[rows.test], predicted), rel=0.02)


def _levels(seed: int, rows: int = 2000) -> tuple[Any, Any]:
    """Return four columns, of whole numbers, of texts, of numbers with gaps, and of numbers, and labels."""
    rng = np.random.default_rng(seed)
    level, town = rng.integers(0, 5, rows), rng.choice(["Ulm", "Bonn", "Jena"], rows)
    gaps, plain = rng.normal(size=rows), rng.normal(size=rows)
    odds = np.array([-1, 1, 0, 2, -2])[level] + np.where(town == "Ulm", 1.0, -0.5) + gaps + 0.5 * plain
    y = (rng.random(rows) < 1 / (1 + np.exp(-odds))).astype(float)
    gaps[rng.random(rows) < 0.2] = np.nan
    return pandas.DataFrame({"level": level.astype(float), "town": town, "gaps": gaps, "plain": plain}), y


def _one_hot(frame: Any) -> Any:
    return np.column_stack([frame == value for value in np.unique(frame)[1:]]).astype(float)


def _filled(frame: Any, train: Any) -> Any:
    missing = np.isnan(frame)
    return np.column_stack([np.where(missing, np.median(frame[train][~missing[train]]), frame), missing])


def _evidence(values: Any, y: Any, train: Any) -> Any:
    """Return the weight of evidence of each value, from the formula in Siddiqi (2006) with half a row of each class."""
    weights = np.empty(len(values))
    positive, rows = y[train].sum(), len(train)
    for value in np.unique(values):
        ours = values[train] == value
        p, n = y[train][ours].sum(), (1 - y[train][ours]).sum()
        odds = np.log((p + 0.5) / (positive + 1)) - np.log((n + 0.5) / (rows - positive + 1))
        weights[values == value] = odds
    return weights


PREPARATIONS: dict[str, tuple[dict[str, Any], list[str], Any]] = {
    "none": ({}, ["level", "plain"], lambda frame, y, train: frame.to_numpy()),
    "texts": (
        {},
        ["town", "plain"],
        lambda frame, y, train: np.column_stack([_one_hot(frame["town"].to_numpy()), frame["plain"]]),
    ),
    "gaps": (
        {},
        ["gaps", "level"],
        lambda frame, y, train: np.column_stack([_filled(frame["gaps"].to_numpy(), train), frame["level"]]),
    ),
    "bins": ({"bins": 8}, ["level", "town"], lambda frame, y, train: np.hstack([_one_hot(c) for c in _columns(frame)])),
    "woe": (
        {"woe": {}},
        ["level", "town"],
        lambda frame, y, train: np.column_stack([_evidence(c, y, train) for c in _columns(frame)]),
    ),
    "drop": ({"drop": ["level"]}, ["level", "plain"], lambda frame, y, train: frame[["plain"]].to_numpy()),
}


def _columns(frame: Any) -> list[Any]:
    return [frame[name].to_numpy() for name in frame.columns]


FAMILIES: dict[str, dict[str, Any]] = {
    "shares": {},
    "open": {"protocol": "open", "accepts": ACCEPTED},
    "ckks": {"protocol": "ckks", "accepts": ACCEPTED},
}


# a job on shares refuses weights of evidence
@pytest.mark.parametrize(
    ("name", "family"), [item for item in product(PREPARATIONS, FAMILIES) if item != ("woe", "shares")]
)
def test_the_baseline_prepares_columns_as_scikit_learn_would(name: str, family: str) -> None:
    prepare, columns, oracle = PREPARATIONS[name]
    frame, y = _levels(3)
    bank = vfl.Party("bank", frame[columns], y, ids=range(len(y)))
    job = vfl.Job(model=vfl.Logistic(), test_fraction=0.25, prepare=prepare, **FAMILIES[family])
    rows = job.schedule(register_of([bank]))
    X = oracle(frame[columns], y, rows.train)
    predicted = LogisticRegression(C=1e6).fit(X[rows.train], y[rows.train]).predict_proba(X[rows.test])
    baseline = baseline_figures(job, bank)
    assert baseline is not None
    assert baseline.metrics["log_loss"] == pytest.approx(log_loss(y[rows.test], predicted), abs=2e-3)
    assert baseline.metrics["auc"] == pytest.approx(roc_auc_score(y[rows.test], predicted[:, 1]), abs=2e-3)


def _insured(seed: int) -> tuple[Any, Any, Any]:
    """Return two columns, a column of exposures, and counts."""
    rng = np.random.default_rng(seed)
    X, years = rng.normal(size=(3000, 2)), rng.uniform(0.2, 3, 3000)
    return X, years, rng.poisson(years * np.exp(X @ [0.4, -0.3])).astype(float)


@pytest.mark.parametrize("family", ["shares", "open"])
def test_the_baseline_uses_exposures_as_scikit_learn_does(family: str) -> None:
    X, years, y = _insured(5)
    bank = vfl.Party("bank", pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "years": years}), y, ids=range(3000))
    job = vfl.Job(model=vfl.Poisson(), exposure="years", test_fraction=0.25, **FAMILIES[family])
    rows = job.schedule(register_of([bank]))
    fitted = PoissonRegressor(alpha=0, max_iter=1000).fit(
        X[rows.train], y[rows.train] / years[rows.train], sample_weight=years[rows.train]
    )
    rate, test = fitted.predict(X[rows.test]), rows.test
    baseline = baseline_figures(job, bank)
    assert baseline is not None
    if family == "shares":  # a run on shares opens the loss only
        deviance = mean_poisson_deviance(y[test], years[test] * rate)
        loss = deviance / 2 / y[rows.train].mean()
        assert baseline.metrics == {"loss": pytest.approx(loss, rel=1e-3)}
    else:
        deviance = mean_poisson_deviance(y[test], years[test] * rate)
        assert baseline.metrics["deviance"] == pytest.approx(deviance, rel=1e-3)


def test_a_cross_validation_uses_exposures_and_evidence() -> None:
    X, years, y = _insured(6)
    bank = vfl.Party("bank", pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "years": years}), y, ids=range(3000))
    job = vfl.Job(model=vfl.Poisson(), exposure="years", test_fraction=0.25)
    scored = vfl.cross_validate(job, {"l2": (0.001, 0.002)}, bank, scoring="neg_mean_poisson_deviance")
    rows = job.schedule(bank.register).train
    deviances = []
    for train, test in KFold(5, shuffle=True, random_state=0).split(rows):
        train, test = rows[train], rows[test]
        model = PoissonRegressor(alpha=0.001, max_iter=1000)
        fitted = model.fit(X[train], y[train] / years[train], sample_weight=years[train])
        deviances.append(mean_poisson_deviance(y[test], years[test] * fitted.predict(X[test])))
    assert scored.alternatives[0].score == pytest.approx(-np.mean(deviances), rel=2e-3)
    frame, labels = _levels(7)
    party = vfl.Party("bank", frame[["level", "town"]], labels, ids=range(len(labels)))
    areas = [
        vfl.cross_validate(
            vfl.Job(model="logistic", prepare=prepare, **FAMILIES[family]),
            {"l2": (1e-4, 1e-3)},
            party,
            scoring="roc_auc",
        ).best.score
        for prepare, family in (({"woe": {}}, "ckks"), ({"bins": 8}, "shares"))
    ]
    assert areas[0] == pytest.approx(areas[1], abs=0.01)


def test_a_cross_validation_names_classes_as_the_training_does() -> None:
    # of all rows "b" is the rarer class, of the training rows "a"
    job = vfl.Job(model=vfl.Logistic(), test_fraction=0.25, protocol="open", accepts=ACCEPTED)
    X, y = np.random.default_rng(0).normal(size=(400, 1)), np.empty(400, dtype="<U1")
    rows = job.schedule(vfl.Party("bank", X, ids=range(400)).register)
    y[rows.train], y[rows.test] = ["a"] * 148 + ["b"] * 152, ["a"] * 53 + ["b"] * 47
    bank = vfl.Party("bank", X + 3 * (y == "b")[:, None], y, ids=range(400))
    scored = vfl.cross_validate(job, {"l2": (0.01, 0.1)}, bank, scoring="roc_auc")
    assert scored.best.score > 0.95


def test_the_terminal_compares_the_metrics_of_both_models() -> None:
    alone = LocalQuality({"deviance": 1.5, "gini": 0.25}, {"deviance": 0.01})
    joint = LocalQuality({"deviance": 1.25}, {"deviance": 0.02})

    def columns(alone: LocalQuality | None) -> list[list[str]]:
        """Return the columns of the table, each with its head first."""
        return [[str(column.header), *map(str, column.cells)] for column in metrics_table("bank", joint, alone).columns]

    names, together = ["metric", "mean deviance"], ["all parties", "1.250 ± 0.020"]
    assert columns(alone) == [names, ["bank alone", "1.500 ± 0.010"], together]
    assert columns(None) == [names, together]
    assert columns(LocalQuality({"auc": 0.75}, {})) == [names, together]


def test_both_reports_compare_with_the_baseline(tmp_path: Path) -> None:
    y = labels_for(BLOCKS, "counts")
    parties = [vfl.Party("bank", BLOCKS[0], y, ids=range(2000)), vfl.Party("shop", BLOCKS[1], ids=range(2000))]
    job = vfl.Job(model="poisson", protocol="open", test_fraction=0.25, accepts=ACCEPTED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataNotice)
        run = vfl.simulate(job, parties)
    alone = baseline_figures(run.job, parties[0])
    assert alone is not None
    assert run.metrics["deviance"] < alone.metrics["deviance"]
    run.report(tmp_path / "page.html", alone=alone)
    assert "bank alone" in (tmp_path / "page.html").read_text()
    written = json.loads(json.dumps(report(run, network=Network(), lacking={}, alone=alone.metrics)))
    assert written["alone"] == alone.metrics
    assert np.isfinite(list(written["alone"].values())).all()
