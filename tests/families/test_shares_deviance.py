"""What measurements on shares report: the deviance of counts and amounts, and classes that are separated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.errors import DataNotice
from securevfl.models.losses import LOSSES

TESTED_MODELS: dict[str, Any] = {
    "poisson": vfl.Poisson(),
    "gamma": vfl.Gamma(),
    "tweedie": vfl.Tweedie(power=1.3),
    "negative_binomial": vfl.NegativeBinomial(dispersion=0.5),
}


@pytest.mark.parametrize("name", TESTED_MODELS)
def test_the_loss_is_a_multiple_of_the_deviance(name: str) -> None:
    loss, draw = TESTED_MODELS[name].loss, np.random.default_rng(1)
    y = draw.poisson(3.0, 200) + (1.0 if loss.positive else 0.0)
    classes = loss.classes(y)
    f = 0.3 * draw.normal(size=(200, 1)) + (0.0 if classes[1] != 1 else 1.0)
    deviance = loss.deviance(y.astype(float), loss.mean(f, classes)).mean()
    assert loss.deviance_scale(classes) * loss.value(f, loss.targets(y, classes)).mean() == pytest.approx(deviance)
    assert set(TESTED_MODELS) <= set(LOSSES)


def train(name: str, rows: int, mean: float = 1.0, **keys: Any) -> tuple[vfl.Run, list[vfl.Party], np.ndarray]:
    """Train a model of counts or amounts, and return the run, the parties and the held-out rows."""
    draw = np.random.default_rng(2)
    X = draw.normal(size=(rows, 4))
    mu = mean * np.exp(X @ [0.3, -0.2, 0.2, 0.1] + 1)
    y = draw.gamma(2.0, mu / 2) if name == "gamma" else draw.poisson(mu).astype(float)
    parties = [vfl.Party("bank", X[:, :2], y, ids=range(rows)), vfl.Party("shop", X[:, 2:], ids=range(rows))]
    run = vfl.simulate(vfl.Job(model=TESTED_MODELS[name], epochs=20, **keys), parties)
    return run, parties, run.job.schedule(parties[0].register).test


def measured_exactly(run: vfl.Run, parties: list[vfl.Party], rows: np.ndarray) -> dict[str, float]:
    """Return the metrics from exact scores of these rows."""
    return run.evaluate({party.name: party.X[rows] for party in parties}, np.asarray(parties[0].y)[rows])


@pytest.mark.parametrize("name", TESTED_MODELS)
def test_all_metrics_are_those_of_the_model(name: str) -> None:
    run, parties, test = train(name, 8000)
    exact = measured_exactly(run, parties, test)
    assert set(run.metrics) >= {"deviance", "gini", "loss"}
    missing = (exact.keys() - run.metrics.keys()) | ({"calibration"} if not run.calibration else set())
    assert all(name in str([note for note in run.notes if "imprecise" in note]) for name in missing)
    assert run.metrics["deviance"] == pytest.approx(exact["deviance"], rel=0.02)
    for metric, error in run.metric_std_errors.items():
        assert abs(run.metrics[metric] - exact[metric]) <= 6 * error, metric
    assert set(run.metric_std_errors) == run.metrics.keys() & {"gini", "r2", "rmse"}
    assert any("rounded at random" in note for note in run.notes)
    (pairs,) = [item for item in run.active.outputs_of_run if "pairs" in item.name]
    assert (pairs.rows, pairs.bits) == (len(test), 8)


MISSING = {
    "fewer than 2,000 rows are measured": ("poisson", 1200, 1.0, {}),
    "fewer than 130 of the measured rows": ("poisson", 8000, 0.01, {}),
    "one sum of losses and no pairs": (
        "gamma",
        4000,
        1.0,
        {"protocol": vfl.Protocol(shares=vfl.Shares(metrics="loss"))},
    ),
}


@pytest.mark.parametrize("reason", MISSING)
def test_metrics_that_are_not_measured_are_named_with_the_reason(reason: str) -> None:
    name, rows, mean, keys = MISSING[reason]
    run, parties, test = train(name, rows, mean, **keys)
    exact = measured_exactly(run, parties, test)
    assert run.metrics.keys() == {"deviance", "loss"}
    assert run.metrics["deviance"] == pytest.approx(exact["deviance"], rel=0.02)
    assert not run.calibration
    assert any(reason in note for note in run.notes)


@pytest.mark.parametrize("option", ["weights", "exposure"])
def test_weighed_rows_have_a_loss_and_no_pairs(option: str) -> None:
    """Held-out rows have other weights than training rows."""
    draw = np.random.default_rng(3)
    X, units = draw.normal(size=(3000, 2)), draw.uniform(0.5, 2.0, size=3000)
    keys: dict[str, Any] = {"exposure": "units"} if option == "exposure" else {"weights": {"column": "units"}}
    job, shop = vfl.Job(model="poisson", epochs=10, **keys), vfl.Party("shop", X[:, 1:], ids=range(3000))
    test = job.schedule(shop.register).test
    units[test] *= 2
    y = draw.poisson(units * np.exp(0.3 * X[:, 0] - 0.2 * X[:, 1])).astype(float)
    bank = vfl.Party("bank", np.column_stack([X[:, 0], units]), y, ids=range(3000), columns=["age", "units"])
    run = vfl.simulate(job, [bank, shop])
    assert any("rows have weights or an exposure" in note for note in run.notes)
    assert not [item for item in run.active.outputs_of_run if "pairs" in item.name]
    assert run.metrics.keys() == ({"loss"} if option == "exposure" else {"deviance", "loss"})
    exact = run.evaluate({"bank": X[test, :1], "shop": X[test, 1:]}, y[test], **{option: units[test]})
    loss, train = job.model.loss, np.delete(y, test)
    measured = {"deviance": loss.deviance_scale(loss.classes(train)) * run.metrics["loss"]} | run.metrics
    # rounded outputs move a loss by spacing / sqrt(6 n) times the root mean square of residuals: 0.1 %
    for metric in measured.keys() & exact.keys():
        assert measured[metric] == pytest.approx(exact[metric], rel=0.02), metric


def test_separation_by_a_column_of_the_partner_is_reported() -> None:
    draw = np.random.default_rng(5)
    X, y = draw.normal(size=(1500, 4)), (np.arange(1500) % 3 == 0).astype(int)
    Z = np.column_stack([y + 0.01 * draw.normal(size=1500), draw.normal(size=1500)])
    bank = vfl.Party("bank", X, y, ids=range(1500))
    with pytest.warns(DataNotice, match="separates the classes"):
        vfl.simulate(vfl.Job(model="logistic"), [bank, vfl.Party("shop", Z, ids=range(1500))])
