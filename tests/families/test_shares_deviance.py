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


@pytest.mark.parametrize("name", TESTED_MODELS)
def test_a_run_has_the_deviance_of_its_model(name: str) -> None:
    draw = np.random.default_rng(2)
    X = draw.normal(size=(1200, 4))
    mu = np.exp(X @ [0.3, -0.2, 0.2, 0.1] + 1)
    y = draw.gamma(2.0, mu / 2) if name == "gamma" else draw.poisson(mu).astype(float)
    parties = [vfl.Party("bank", X[:, :2], y, ids=range(1200)), vfl.Party("shop", X[:, 2:], ids=range(1200))]
    run = vfl.simulate(vfl.Job(model=TESTED_MODELS[name], epochs=20), parties)
    test = run.job.schedule(parties[0].register).test
    exact = run.evaluate({party.name: party.X[test] for party in parties}, y[test])
    assert run.metrics["deviance"] == pytest.approx(exact["deviance"], rel=0.02)
    missing = exact.keys() - run.metrics.keys()
    assert missing == {"gini", "r2", "rmse"}
    (note,) = [note for note in run.notes if "gini" in note]
    assert all(words in note for words in (*missing, "calibration", "one bit for the label"))


def test_separation_by_a_column_of_the_partner_is_reported() -> None:
    draw = np.random.default_rng(5)
    X, y = draw.normal(size=(1500, 4)), (np.arange(1500) % 3 == 0).astype(int)
    Z = np.column_stack([y + 0.01 * draw.normal(size=1500), draw.normal(size=1500)])
    bank = vfl.Party("bank", X, y, ids=range(1500))
    with pytest.warns(DataNotice, match="separates the classes"):
        vfl.simulate(vfl.Job(model="logistic"), [bank, vfl.Party("shop", Z, ids=range(1500))])
