"""The curvature bound of every loss against its second derivative at labels that the loss admits."""

from __future__ import annotations

import math

import numpy as np
import pytest

import securevfl as vfl
from securevfl.errors import LabelError
from securevfl.models.log_link_losses import (
    MAX_COUNT_MEAN,
    MIN_COUNT_MEAN,
    GammaLoss,
    LogLinkLoss,
    NegativeBinomialLoss,
    TweedieLoss,
)
from securevfl.models.loss import Loss
from securevfl.models.losses import LOSSES
from tests.builders import raises_code

statsmodels = pytest.importorskip("statsmodels.api")

STEP = 1e-4
OUTPUTS = np.linspace(-8.0, 8.0, 3201)

BOUNDED: dict[str, Loss] = {
    **{name: loss for name, loss in LOSSES.items() if loss.curvature is not None and not isinstance(loss, LogLinkLoss)},
    "poisson": LOSSES["poisson"],
    "gamma": GammaLoss(),
    **{f"tweedie {power}": TweedieLoss(power) for power in (1.05, 1.2, 1.5, 1.8, 1.95)},
    **{f"negative binomial {a}": NegativeBinomialLoss(a) for a in (0.001, 0.05, 0.1, 0.5, 1.0, 3.0, 20.0)},
}
"""Losses with a curvature bound; those with a parameter for several of its values."""


def rows_of(loss: Loss) -> tuple[np.ndarray, np.ndarray]:
    """Return outputs f (n, c), and targets (n, c) of labels that equal the mean label, or of each class."""
    if isinstance(loss, LogLinkLoss):
        means = [1.0]
        if isinstance(loss, NegativeBinomialLoss):  # counts are not scaled
            means = np.geomspace(MIN_COUNT_MEAN, MAX_COUNT_MEAN, 13).tolist()
        f, y = np.meshgrid(OUTPUTS[-math.log(4) < OUTPUTS] if isinstance(loss, GammaLoss) else OUTPUTS, means)
        return f.reshape(-1, 1), y.reshape(-1, 1)
    if loss.single:
        labels = [-1.0, 1.0] if loss.classifies else [-2.0, -0.3, 0.0, 1.0]
        f, y = np.meshgrid(OUTPUTS, labels)
        return f.reshape(-1, 1), y.reshape(-1, 1)
    classes = np.arange(3)
    f = np.random.default_rng(0).uniform(-4, 4, (3000, 3))
    return np.vstack([np.zeros((3, 3)), f]), loss.targets(np.arange(3003) % 3, classes)


def largest_curvature(loss: Loss, f: np.ndarray, y: np.ndarray) -> float:
    """Return the largest eigenvalue of the second derivatives (c, c) of all rows."""
    columns = []
    for k in range(f.shape[1]):
        step = STEP * np.eye(f.shape[1])[k]
        columns.append((loss.residual(f + step, y) - loss.residual(f - step, y)) / (2 * STEP))
    return float(np.linalg.eigvalsh(np.stack(columns, axis=2)).max())


@pytest.mark.parametrize("name", BOUNDED)
def test_no_second_derivative_exceeds_the_bound(name: str) -> None:
    loss = BOUNDED[name]
    assert loss.curvature is not None
    largest = largest_curvature(loss, *rows_of(loss))
    assert largest <= loss.curvature * (1 + 1e-6)
    assert largest > loss.curvature / 8, "steps would be far too short"


@pytest.mark.parametrize("mean", [0.04, 0.06, 1.0, 5.0, 9.9, 10.1])
def test_counts_of_every_mean_are_bounded_or_refused(mean: float) -> None:
    counts = np.random.default_rng(1).poisson(mean, 200_000).astype(np.float64)
    loss = NegativeBinomialLoss(1.0)
    if not 0.05 <= counts.mean() <= 10:
        with raises_code(LabelError, "SVFL-LABEL-RANGE"):
            loss.classes(counts)
    else:
        y = np.full((len(OUTPUTS), 1), counts.mean())
        assert loss.curvature is not None
        assert loss.classes(counts).tolist() == [0.0, 1.0]
        assert largest_curvature(loss, OUTPUTS[:, None], y) <= loss.curvature


@pytest.mark.parametrize("protocol", ["open", "shares"])
@pytest.mark.parametrize(("dispersion", "mean"), [(1.0, 7.0), (0.5, 3.0), (1.0, 0.1)])
def test_counts_of_every_mean_are_trained(dispersion: float, mean: float, protocol: str) -> None:
    rng, rows = np.random.default_rng(1), 1500
    X, Z = rng.normal(size=(rows, 3)), rng.normal(size=(rows, 3))
    mu = mean * np.exp(0.3 * X[:, 0] + 0.4 * Z[:, 0] - 0.3 * Z[:, 1])
    y = rng.negative_binomial(1 / dispersion, 1 / (1 + dispersion * mu)).astype(np.float64)
    family = statsmodels.families.NegativeBinomial(alpha=dispersion)
    pooled = statsmodels.GLM(y, np.hstack([np.ones((rows, 1)), X, Z]), family=family).fit()
    model = vfl.NegativeBinomial(dispersion=dispersion)
    job = vfl.Job(model=model, protocol=protocol, test_fraction=0.0, accepts=["columns", "rank", "small_metrics"])
    parties = [vfl.Party("bank", X, y, ids=range(rows)), vfl.Party("shop", Z, ids=range(rows))]
    predicted = vfl.simulate(job, parties).predict({"bank": X, "shop": Z})
    assert family.deviance(y, predicted) == pytest.approx(pooled.deviance, rel=2e-3)
