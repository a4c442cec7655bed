"""Step sizes from the curvature of each party's columns, compared with tuned ones on the included tables."""

from typing import Any

import numpy as np
import pytest
from builders import raises_code

import securevfl as vfl
from securevfl.errors import ConfigError
from securevfl.models.losses import LOSSES
from securevfl.models.metrics import area_under_curve
from securevfl.training.checkpoint import Checkpoints

CURVATURE_TABLES = {
    "breast cancer": ("logistic", vfl.datasets.breast_cancer, "auc"),
    "digits": ("softmax", vfl.datasets.digits, "auc"),
    "diabetes": ("square", vfl.datasets.diabetes, "r2"),
}


def curvature_job(model: Any = "logistic", optimizer: Any = None, **keys: Any) -> vfl.Job:
    defaults: dict[str, Any] = {"protocol": "open", "batch_size": 64, "epochs": 10, "accepts": ["columns"]}
    return vfl.Job(model=model, optimizer=optimizer or vfl.FedBCD(), **defaults | keys)


@pytest.mark.parametrize("count", [2, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CURVATURE_TABLES)
def test_untuned_steps_come_within_a_hair_of_tuned_ones(name: str, count: int) -> None:
    model, table, metric = CURVATURE_TABLES[name]
    parties = table(count)
    computed = vfl.simulate(curvature_job(model), parties).metrics[metric]
    tuned = [vfl.simulate(curvature_job(model, vfl.FedBCD(lr=lr)), parties).metrics[metric] for lr in (0.01, 0.03, 0.1)]
    assert computed > max(tuned) - 0.005


@pytest.mark.parametrize("decay", ["none", "sqrt_t", "sqrt_tk", "inverse"])
@pytest.mark.parametrize("before", [1, 3])
def test_a_step_is_that_of_the_bound_on_the_curvature(decay: Any, before: int) -> None:
    """One round of Q steps on all rows against a loop over the pooled table, and the decay of later steps."""
    bank, shop = vfl.datasets.breast_cancer()
    optimizer = vfl.FedBCD(local_steps=3, decay=decay)
    step_job = curvature_job(vfl.Logistic(l2=0.01), optimizer, batch_size="all", epochs=before + 1)
    run = vfl.simulate(step_job, [bank, shop])
    X, loss = (shop.X - shop.X.mean(axis=0)) / shop.X.std(axis=0), LOSSES["logistic"]
    steep = 0.25 * np.linalg.norm(X, 2) ** 2 / len(X) + 0.01
    at = vfl.simulate(step_job.model_copy(update={"epochs": before}), [bank, shop]).parts
    bank_X = (bank.X - bank.X.mean(axis=0)) / bank.X.std(axis=0)
    assert bank.y is not None
    y = np.where(bank.y == 1, 1.0, -1.0)[:, None]
    theta = at["shop"].theta
    bank_theta = at["bank"].theta
    g = loss.residual(X @ theta + bank_X @ bank_theta[:-1] + bank_theta[-1], y)
    left = {
        "none": 1.0,
        "sqrt_t": (before + 1) ** -0.5,
        "sqrt_tk": (2 * (before + 1)) ** -0.5,
        "inverse": 1 / (before + 1),
    }
    for _ in range(3):
        theta = theta - left[decay] * (X.T @ g / len(X) + 0.01 * theta) / (2 * 3 * steep)
    np.testing.assert_allclose(run.parts["shop"].theta, theta, rtol=1e-9)


@pytest.mark.parametrize(
    "optimizer", [vfl.FedSGD(), vfl.FedPBCD(mu=0.1), vfl.FedBCD(mode="sequential"), vfl.FedBCD(rule="momentum")]
)
def test_every_schedule_takes_them(optimizer: Any) -> None:
    parties = vfl.datasets.breast_cancer()
    run = vfl.simulate(curvature_job(optimizer=optimizer, accepts=["columns", "sequential"]), parties)
    assert run.metrics["auc"] > 0.99
    assert area_under_curve(parties[0].y == 1, run.decision({party.name: party.X for party in parties})[:, 0]) > 0.99


def test_a_resumed_training_takes_the_same_steps(tmp_path: Any) -> None:
    def cut(done: int, of: int) -> None:
        if done == 7:
            raise RuntimeError("cut")

    parties = vfl.datasets.breast_cancer()
    states = {party.name: Checkpoints(tmp_path / party.name, party.name, every=1) for party in parties}
    with pytest.raises(RuntimeError, match="cut"):
        vfl.simulate(curvature_job(epochs=2), parties, checkpoints=states, on_round=cut)
    run, uninterrupted = (
        vfl.simulate(curvature_job(epochs=2), parties, checkpoints=states),
        vfl.simulate(curvature_job(epochs=2), parties),
    )
    for name, part in run.parts.items():
        np.testing.assert_array_equal(part.theta, uninterrupted.parts[name].theta)


@pytest.mark.parametrize(
    "keys",
    [
        {"optimizer": {"name": "fedbcd", "rule": "adam"}},
        {"model": "transfer"},
        {"protocol": {"shares": {}}},
        {"optimizer": {"name": "fdml", "lr": None}},
    ],
)
def test_a_step_size_is_required_without_curvature(keys: dict[str, Any]) -> None:
    defaults: dict[str, Any] = {"model": "logistic", "optimizer": "fedbcd", "protocol": "ckks"}
    with raises_code(ConfigError, "SVFL-JOB-OPTION", option="optimizer.lr"):
        vfl.Job(**defaults | keys)
