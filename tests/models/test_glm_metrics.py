"""Deviance, Gini index and calibration of counts and amounts against statsmodels and scikit-learn."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import auc, mean_gamma_deviance, mean_poisson_deviance

import securevfl as vfl
from securevfl.data.party import register_of
from securevfl.errors import DataNotice

ROWS = 3000
DRAW = np.random.default_rng(21)
LEFT, RIGHT = DRAW.normal(size=(ROWS, 3)), DRAW.normal(size=(ROWS, 3))
MEAN = np.exp(np.hstack([LEFT, RIGHT]) @ [0.4, -0.3, 0.2, 0.3, 0.2, 0.0])
LABELS = {"poisson": DRAW.poisson(2 * MEAN).astype(float), "gamma": DRAW.gamma(1.5, 100 * MEAN / 1.5)}
DEVIANCES = {"poisson": mean_poisson_deviance, "gamma": mean_gamma_deviance}
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
    y = LABELS[name]
    parties = [vfl.Party("bank", LEFT, y, ids=range(ROWS)), vfl.Party("shop", RIGHT, ids=range(ROWS))]
    keys: dict[str, Any] = {} if protocol == "shares" else {"protocol": protocol, "accepts": ACCEPTED}
    job = vfl.Job(model=name, test_fraction=0.3, **keys)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataNotice)
        run = vfl.simulate(job, parties)
    rows, X = job.schedule(register_of(parties)), api.add_constant(np.hstack([LEFT, RIGHT]))
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
        assert abs(actual - y[group].mean()) <= 2 * error  # some rows are in the neighbouring group


@pytest.mark.parametrize("name", LABELS)
def test_on_shares_missing_figures_are_named(name: str) -> None:
    run, y, predicted = train(name, "shares")
    values = DEVIANCES[name](y, predicted)
    spread = np.std([DEVIANCES[name](y[rows], predicted[rows]) for rows in np.array_split(np.arange(len(y)), 30)])
    assert abs(run.metrics["deviance"] - values) <= spread / np.sqrt(30)
    (note,) = [note for note in run.notes if "not measured on shares" in note]
    assert note.startswith("gini, calibration, r2, rmse and standard errors")
    assert not {"gini", "r2", "rmse"} & run.metrics.keys()
    assert run.summary()["notes"] == run.notes
