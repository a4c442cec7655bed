"""The model of the label party's columns alone in a report, for each kind of model, against scikit-learn."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
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
from sklearn.multiclass import OneVsRestClassifier

import securevfl as vfl
from securevfl.cli.show import alone_lines
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


def test_the_terminal_compares_the_metrics_of_both_models() -> None:
    alone = LocalQuality({"deviance": 1.5, "gini": 0.25}, {"deviance": 0.01})
    assert alone_lines("bank", {"deviance": 1.25}, alone) == [
        "bank alone, without the other columns: deviance 1.5000 +- 0.0100"
    ]
    assert not alone_lines("bank", {"deviance": 1.25}, None)
    assert not alone_lines("bank", {"auc": 0.75}, alone)


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
