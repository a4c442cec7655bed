"""Deviance, Gini index and calibration of counts and amounts against statsmodels and scikit-learn."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import auc, mean_gamma_deviance, mean_poisson_deviance, r2_score

import securevfl as vfl
from securevfl.data.party import register_of
from securevfl.errors import DataNotice
from securevfl.models.rounded_labels import MAX_ROUNDED_ERROR

ROWS = 3000
# pairs of rounded labels need 2,000 held-out rows, and more for amounts, which differ more
ROWS_ON_SHARES = {"poisson": 8_000, "gamma": 20_000}
DEVIANCES = {"poisson": mean_poisson_deviance, "gamma": mean_gamma_deviance}
LABELS = tuple(DEVIANCES)
ACCEPTED = ["columns", "rank", "label_auc", "fresh_equations"]


def lorenz_gini(y: np.ndarray, score: np.ndarray) -> float:
    """Return the Gini index of amounts sorted by a score, relative to the best one, from areas of Lorenz curves."""

    def area(by: np.ndarray) -> float:
        shares = np.concatenate([[0.0], np.cumsum(y[np.argsort(by, kind="stable")]) / y.sum()])
        return float(1 - 2 * auc(np.linspace(0, 1, len(shares)), shares))

    return area(score) / area(y)


def train(name: str, protocol: str) -> tuple[vfl.Run, np.ndarray, np.ndarray]:
    """Train, and return the run with the labels of the held-out rows and statsmodels' predictions for them."""
    api = pytest.importorskip("statsmodels.api")
    draw, size = np.random.default_rng(21), ROWS_ON_SHARES[name] if protocol == "shares" else ROWS
    left, right = draw.normal(size=(size, 3)), draw.normal(size=(size, 3))
    mean = np.exp(np.hstack([left, right]) @ [0.4, -0.3, 0.2, 0.3, 0.2, 0.0])
    y = draw.poisson(2 * mean).astype(float) if name == "poisson" else draw.gamma(1.5, 100 * mean / 1.5)
    parties = [vfl.Party("bank", left, y, ids=range(size)), vfl.Party("shop", right, ids=range(size))]
    keys: dict[str, Any] = {} if protocol == "shares" else {"protocol": protocol, "accepts": ACCEPTED}
    job = vfl.Job(model=name, test_fraction=0.3, **keys)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataNotice)
        run = vfl.simulate(job, parties)
    rows, X = job.schedule(register_of(parties)), api.add_constant(np.hstack([left, right]))
    kind = api.families.Poisson() if name == "poisson" else api.families.Gamma(api.families.links.Log())
    oracle = api.GLM(y[rows.train], X[rows.train], family=kind).fit(tol=1e-12)
    return run, y[rows.test], np.asarray(oracle.predict(X[rows.test]))


@pytest.mark.parametrize("protocol", ["open", "ckks"])
@pytest.mark.parametrize("name", LABELS)
def test_figures_agree_with_the_libraries_within_their_errors(name: str, protocol: str) -> None:
    run, y, predicted = train(name, protocol)
    errors = run.metric_std_errors
    assert abs(run.metrics["deviance"] - DEVIANCES[name](y, predicted)) <= errors["deviance"]
    assert abs(run.metrics["gini"] - lorenz_gini(y, predicted)) <= errors["gini"]
    order = np.array_split(np.argsort(predicted, kind="stable"), 10)
    for group, (mean, actual, rows) in zip(order, run.calibration, strict=True):
        error = y[group].std() / np.sqrt(len(group))
        assert rows == len(group)
        assert abs(mean - predicted[group].mean()) <= error
        # some rows are in the neighbouring group: in about twenty runs this was at most 2.3 errors
        assert abs(actual - y[group].mean()) <= 4 * error


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "gamma")) for name in LABELS])
def test_on_shares_figures_agree_within_their_errors(name: str) -> None:
    run, y, predicted = train(name, "shares")
    values = DEVIANCES[name](y, predicted)
    spread = np.std([DEVIANCES[name](y[rows], predicted[rows]) for rows in np.array_split(np.arange(len(y)), 30)])
    assert abs(run.metrics["deviance"] - values) <= spread / np.sqrt(30)
    exact = {
        "gini": lorenz_gini(y, predicted),
        "r2": r2_score(y, predicted),
        "rmse": float(np.sqrt(np.mean((y - predicted) ** 2))),
    }
    assert "gini" in run.metrics
    for metric, error in run.metric_std_errors.items():
        assert abs(run.metrics[metric] - exact[metric]) <= 6 * error, metric
    missing = (exact.keys() - run.metrics.keys()) | ({"calibration"} if not run.calibration else set())
    assert all(figure in str([note for note in run.notes if "imprecise" in note]) for figure in missing)
    groups = np.array_split(np.argsort(predicted, kind="stable"), 10) if run.calibration else []
    for group, (mean, actual, rows) in zip(groups, run.calibration, strict=True):
        assert rows == len(group)
        assert abs(mean - predicted[group].mean()) <= 0.1 * predicted[group].mean()
        assert abs(actual - y[group].mean()) <= 6 * MAX_ROUNDED_ERROR * y.mean()
    (note,) = [note for note in run.notes if "are computed from model outputs" in note]
    assert note.startswith("gini, r2, rmse and calibration")
    assert run.summary()["notes"] == run.notes
