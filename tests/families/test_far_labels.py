"""Metrics of residuals on shares for labels with heavy tails: exact within a standard error, or not stated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.families.shares.metric_labels import MetricLabels
from securevfl.models import metrics
from securevfl.models.losses import LOSSES
from securevfl.models.robust_losses import QuantileLoss
from securevfl.protocols.shares.score_label_pairs import MIN_ROWS_PER_LABEL, ScoreLabelPairs

REACH, ROWS = 16.0, 6000


def opened(y: Any, loss: Any, seed: int, correlation: float = 0.6) -> tuple[MetricLabels, Any, dict[str, float]]:
    """Return labels of a measurement, its pairs in a random order, and the metrics of linked rows."""
    draw = np.random.default_rng(seed)
    classes = loss.classes(y)
    targets = loss.targets(y, classes)[:, 0]
    f = np.clip(correlation * np.clip(targets, -3, 5) + 0.3 * draw.normal(size=len(y)), -6, 6)[:, None]
    labels = MetricLabels.of(loss, y, classes, REACH)
    assert labels.subtracted is not None
    r = f - labels.subtracted
    r = (r + REACH) % (2 * REACH) - REACH  # as levels do
    order = draw.permutation(len(y))
    return labels, ScoreLabelPairs(r[order], labels.flags[order]), metrics.evaluate(loss, f, y, classes)


TAILS: dict[str, Any] = {
    "normal": lambda draw: draw.normal(size=ROWS),
    "lognormal": lambda draw: np.exp(1.8 * draw.normal(size=ROWS)),
    "negative": lambda draw: -np.exp(1.8 * draw.normal(size=ROWS)),
    "both sides": lambda draw: draw.standard_t(2, size=ROWS),
    "one row": lambda draw: np.append(draw.normal(size=ROWS - 1), 25.0),
    "few rows": lambda draw: np.append(draw.normal(size=ROWS - 5), [30.0, 20.0, 15.0, 12.0, -25.0]),
}


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("name", ["square", "huber", "quantile", "quantile 0.9"])
def test_what_is_measured_is_within_a_standard_error(name: str, tail: str) -> None:
    loss = QuantileLoss(0.9) if name == "quantile 0.9" else LOSSES[name]
    for seed in range(4):
        y = TAILS[tail](np.random.default_rng(seed))
        labels, pairs, exact = opened(y, loss, seed)
        values, errors, missing = labels.metrics(pairs)[0], labels.standard_errors(pairs), labels.unmeasured(pairs)
        for metric in set(exact) - set(missing):
            assert abs(values[metric] - exact[metric]) <= errors[metric] + 1e-9, (metric, seed)
        if tail == "normal":
            assert not missing
            assert values == pytest.approx(exact, rel=1e-9)


def test_a_training_with_heavy_tails_states_the_right_r2_or_none() -> None:
    draw = np.random.default_rng(3)
    X = draw.normal(size=(3000, 4))
    y = np.exp(1.3 * (X @ [0.6, 0.4, 0.5, 0.3]) + draw.normal(size=3000))
    parties = [vfl.Party("bank", X[:, :2], y, ids=range(3000)), vfl.Party("shop", X[:, 2:], ids=range(3000))]
    run = vfl.simulate(vfl.Job(model="square"), parties)
    test = run.job.schedule(parties[0].register).test
    exact = run.evaluate({party.name: party.X[test] for party in parties}, y[test])
    if "r2" in run.metrics:
        assert abs(run.metrics["r2"] - exact["r2"]) <= run.metric_std_errors["r2"]
        assert abs(run.metrics["rmse"] - exact["rmse"]) <= run.metric_std_errors["rmse"]


@pytest.mark.parametrize("far", [0, 1, MIN_ROWS_PER_LABEL - 1, MIN_ROWS_PER_LABEL])
@pytest.mark.parametrize("name", ["square", "huber", "quantile"])
def test_few_rows_with_far_labels_are_not_flagged(name: str, far: int) -> None:
    """A flag that only a few rows have would show whose they are."""
    y = np.concatenate([np.full(far, 1e3), np.random.default_rng(0).normal(size=20_000)])
    flags = MetricLabels.of(LOSSES[name], y, LOSSES[name].classes(y), REACH).flags
    flagged = far if far >= MIN_ROWS_PER_LABEL else 0
    assert flags[:far].sum() == flags.sum() == flagged
