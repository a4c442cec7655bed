"""The default logistic model on shares against the optimum of the pooled table, for frequent and rare classes."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
import pytest
from selfcheck.whole_weights import whole_weights

import securevfl as vfl
from securevfl.consent.settle_job import settle_job
from securevfl.errors import DataNotice
from securevfl.optim.block_descent import rounded_iterations

RATES = (0.3, 0.1, 0.02, 0.005)


class Bias(NamedTuple):
    """How far a model is from the optimum of its training rows.

    Attributes:
        z: the largest distance of a coefficient, in standard errors.
        ratio: the mean prediction relative to the rate of the positive class.
        slope: the slope of the model's outputs on those of the optimum.
    """

    z: float
    ratio: float
    slope: float


def parties(rows: int, rate: float, seed: int = 1) -> list[vfl.Party]:
    """Two parties with correlated, skewed and binary columns, and labels with this rate of positive ones."""
    draw = np.random.default_rng([rows, seed])
    left, right = draw.normal(size=(rows, 5)), draw.normal(size=(rows, 5))
    right[:, 0] = 0.7 * (right[:, 0] + left[:, 0])
    left[:, 1], right[:, 1] = np.exp(0.4 * left[:, 1]), right[:, 1] > 1
    f = np.hstack([left, right]) @ np.tile([0.6, -0.4, 0.3, 0.2, -0.5], 2)
    noise = draw.logistic(size=rows)
    y = (f + noise > np.quantile(f + noise, 1 - rate)).astype(int)
    return [vfl.Party("bank", left, y, ids=range(rows)), vfl.Party("shop", right, ids=range(rows))]


def optimum(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights of the logistic regression of y (n,) on X (n, d), and their standard errors."""
    theta = np.zeros(X.shape[1])
    for _ in range(30):
        p = 1 / (1 + np.exp(-X @ theta))
        hessian = (X * (p * (1 - p))[:, None]).T @ X
        theta = theta + np.linalg.solve(hessian, X.T @ (y - p))
    return theta, np.sqrt(np.diag(np.linalg.inv(hessian)))


def measure(rows: int, rate: float, **keys: object) -> Bias:
    """Train on shares, and compare the model with the optimum of the same scaled columns."""
    own, job = parties(rows, rate), vfl.Job(model="logistic", protocol="shares", **keys)
    run = vfl.simulate(job, own)
    weights = whole_weights(run.job, {name: part.state for name, part in run.parts.items()}, "bank")
    train = job.schedule(own[0].register).train
    left, right = (run.parts[party.name].scaling(np.asarray(party.X, float)[train]) for party in own)
    X, y = np.column_stack([left, np.ones(len(train)), right]), np.asarray(own[0].y)[train]
    theta, errors = optimum(X, y)
    f, best = X @ np.concatenate([weights["bank"][:, 0], weights["shop"][:, 0]]), X @ theta
    z = np.abs(np.concatenate([weights["bank"][:, 0], weights["shop"][:, 0]]) - theta) / errors
    mean = float((1 / (1 + np.exp(-f))).mean())
    return Bias(float(z.max()), mean / float(y.mean()), float(np.cov(best, f)[0, 1] / best.var()))


# Random rounding alone gives the ratio and the slope deviations of 0.0015 and 0.003, and z one of 0.025 around 0.15.
# With the residual's values in place of its projection, z is 1, and both differ from 1 by 0.01 to 0.04.
@pytest.mark.parametrize(("rate", "bound"), [(0.3, 0.011), (0.1, 0.021)])
@pytest.mark.filterwarnings("ignore::securevfl.errors.DataNotice")
def test_the_default_model_is_the_optimum_of_the_pooled_table(rate: float, bound: float) -> None:
    bias = measure(8000, rate)
    assert bias.z <= 0.35
    assert abs(bias.ratio - 1) <= bound
    assert abs(bias.slope - 1) <= bound


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::securevfl.errors.DataNotice")
def test_rare_classes_reach_the_optimum_with_more_iterations() -> None:
    """At a rate of 1 %, the default takes 60 iterations; 40 leave several standard errors."""
    assert measure(8000, 0.01).z <= 0.5


@pytest.mark.parametrize(
    ("rate", "keys", "noticed"),
    [
        (0.3, {}, False),
        (0.005, {"epochs": 41}, True),
        (0.005, {"epochs": 80}, False),
        (0.3, {"epochs": 5}, True),
    ],
)
def test_too_few_iterations_for_a_rare_class_are_reported(rate: float, keys: dict[str, int], noticed: bool) -> None:
    with warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always")
        vfl.simulate(vfl.Job(model="logistic", protocol="shares", **keys), parties(2000, rate))
    assert any("from the optimum" in str(notice.message) for notice in notices) == noticed


def test_weights_that_differ_much_need_more_iterations() -> None:
    bank, shop = parties(1500, 0.3)
    weights = np.where(np.arange(1500) % 50 == 0, 20.0, 1.0)
    X = np.column_stack([bank.X, weights])
    own = [vfl.Party("bank", X, bank.y, ids=range(1500), columns=[*"abcde", "w"]), shop]
    job = vfl.Job(model="logistic", weights={"column": "w", "max_weight": 64}, epochs=40)
    with pytest.warns(DataNotice, match="weights of rows differ much"):
        vfl.simulate(job, own)


@pytest.mark.parametrize(("rate", "keys", "epochs"), [(0.3, {}, 40), (0.005, {}, 120), (0.005, {"epochs": 80}, 80)])
def test_rare_classes_get_more_iterations(rate: float, keys: dict[str, int], epochs: int) -> None:
    own = parties(2000, rate)
    with warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always")
        job = settle_job(vfl.Job(model="logistic", **keys), own)
    assert job.epochs == epochs
    if not keys:
        assert job.epochs == 2 * job.evaluate_every
    assert any("All parties learn this number" in str(notice.message) for notice in notices) == (epochs == 120)


@pytest.mark.parametrize("iterations", [1, 10, 11, 15, 16, 20, 41, 60, 61, 97, 160, 161])
def test_rounded_numbers_are_few_and_large_enough(iterations: int) -> None:
    rounded = rounded_iterations(iterations)
    assert iterations <= rounded < max(11, 1.6 * iterations)
    assert rounded in {10, 15, 20, 30, 40, 60, 80, 120, 160, 240}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::securevfl.errors.DataNotice")
def test_a_party_of_300_columns_reaches_the_optimum() -> None:
    """Columns with twelve common factors; the loss of training rows is close to that of the pooled optimum."""
    draw = np.random.default_rng(4)
    left, factors = draw.normal(size=(2000, 4)), draw.normal(size=(2000, 12))
    right = factors @ draw.normal(size=(12, 300)) + 0.3 * draw.normal(size=(2000, 300))
    f = left.sum(axis=1) + 0.02 * right @ draw.normal(size=300)
    y = (f + draw.logistic(size=2000) > 0).astype(int)
    own = [vfl.Party("bank", left, y, ids=range(2000)), vfl.Party("shop", right, ids=range(2000))]
    job = vfl.Job(model="logistic", protocol="shares")
    run = vfl.simulate(job, own)
    weights = whole_weights(run.job, {name: part.state for name, part in run.parts.items()}, "bank")
    train = job.schedule(own[0].register).train
    blocks = [run.parts[party.name].scaling(np.asarray(party.X, float)[train]) for party in own]
    X = np.column_stack([blocks[0], np.ones(len(train)), blocks[1]])
    theta, _ = optimum(X, y[train])
    trained = np.concatenate([weights["bank"][:, 0], weights["shop"][:, 0]])
    losses = [np.logaddexp(0, -(2 * y[train] - 1) * (X @ w)).mean() for w in (trained, theta)]
    assert 0 <= losses[0] - losses[1] <= 0.004
