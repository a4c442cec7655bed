"""Metrics of levels (rounded scores) are compared with those of exact sums, and ties with all orders of tied rows."""

from itertools import permutations

import numpy as np
import pytest

from securevfl.models import metrics, pair_metrics
from securevfl.models.losses import LOSSES
from securevfl.models.standard_errors import standard_errors

GENERATOR = np.random.default_rng(5)
STEP = 1 / 16


def rounded(f: np.ndarray, step: float = STEP) -> np.ndarray:
    """Round to the grid at random."""
    return np.floor(f / step + GENERATOR.random(f.shape)) * step


def test_ties_count_as_the_mean_over_their_orders() -> None:
    positive = np.array([1, 0, 1, 1, 0, 0, 1], bool)
    score = np.array([3.0, 2, 2, 2, 1, 1, 1])
    values = [
        metrics.average_precision(positive[[0, *first, *second]], -np.arange(7.0))
        for first in permutations((1, 2, 3))
        for second in permutations((4, 5, 6))
    ]
    assert pair_metrics.mean_average_precision(positive, score) == pytest.approx(np.mean(values))
    assert np.isnan(pair_metrics.mean_average_precision(~positive & positive, score))


def test_without_ties_it_is_that_of_the_scores() -> None:
    score = GENERATOR.normal(size=300)
    positive = GENERATOR.random(300) < 0.3
    assert pair_metrics.mean_average_precision(positive, score) == pytest.approx(
        metrics.average_precision(positive, score)
    )


@pytest.mark.parametrize("values", [2, 4, 9])
def test_few_different_scores_are_true_ties(values: int) -> None:
    """Levels of such a model are true ties, whose orders must not count."""
    loss, classes, draw = LOSSES["logistic"], np.array([0, 1]), np.random.default_rng(2)
    differences = []
    for _ in range(20):
        f = draw.choice(np.linspace(-3, 1, values) + 0.013, size=(3000, 1))
        y = (draw.random(3000) < 1 / (1 + np.exp(-f[:, 0]))).astype(int)
        levels = np.floor(f / STEP + draw.random(f.shape)) * STEP
        measured = pair_metrics.class_metrics(loss, levels, (y == 1)[:, None], classes)
        differences.append(measured["pr_auc"] - metrics.evaluate(loss, f, y, classes)["pr_auc"])
    assert np.abs(differences).max() < 1e-9


def test_two_classes_in_any_order() -> None:
    f = GENERATOR.normal(size=(8000, 1)) * 1.5 - 1
    y = np.where(GENERATOR.random(8000) < 1 / (1 + np.exp(-f[:, 0])), "yes", "no")
    loss, order = LOSSES["logistic"], GENERATOR.permutation(8000)
    exact = metrics.evaluate(loss, f, y, np.array(["no", "yes"]))
    measured = pair_metrics.class_metrics(loss, rounded(f)[order], (y == "yes")[order, None], np.array(["no", "yes"]))
    assert list(measured) == list(exact) == pair_metrics.pair_metric_names(loss)
    bounds = {"auc": 5e-4, "log_loss": 3e-4, "loss": 3e-4, "brier": 2e-4, "pr_auc": 2e-3, "ks": 6e-3}
    for name, bound in bounds.items():
        assert abs(measured[name] - exact[name]) < bound, name


def test_several_classes_each_by_itself() -> None:
    y = GENERATOR.integers(0, 4, 6000)
    f = GENERATOR.normal(size=(6000, 4)) + 2 * (y[:, None] == np.arange(4))
    loss, classes = LOSSES["one_vs_rest"], np.arange(4)
    levels, marked = rounded(f), y[:, None] == classes
    for k in range(4):
        order = GENERATOR.permutation(6000)
        levels[:, k], marked[:, k] = levels[order, k], marked[order, k]
    measured = pair_metrics.class_metrics(loss, levels, marked, classes)
    assert list(measured) == pair_metrics.pair_metric_names(loss)
    areas = [metrics.area_under_curve(y == k, f[:, k]) for k in range(4)]
    assert measured["auc"] == pytest.approx(np.mean(areas), abs=1e-4)
    assert measured["loss"] == pytest.approx(loss.value(f, loss.targets(y, classes)).mean(), abs=2e-3)


def test_residuals() -> None:
    y = GENERATOR.normal(size=5000) * 7 + 3
    loss = LOSSES["square"]
    classes = loss.classes(y)
    targets = loss.targets(y, classes)
    f = 0.8 * targets + GENERATOR.normal(size=targets.shape) * 0.3
    exact = metrics.evaluate(loss, f, y, classes)
    residuals = rounded(f - targets, 1 / 64)[GENERATOR.permutation(5000)]
    measured = pair_metrics.residual_metrics(loss, residuals, targets, classes)
    assert measured == pytest.approx(exact, abs=2e-3)
    assert list(measured) == pair_metrics.pair_metric_names(loss)


@pytest.mark.parametrize(("rows", "share"), [(150, 0.3), pytest.param(5000, 0.01, marks=pytest.mark.slow)])
def test_metrics_of_levels_are_within_their_stated_error(rows: int, share: float) -> None:
    """Levels change a metric by less than other rows would, and both by less than the printed error.

    Few rows and a rare class are included; the 20 draws are fixed.
    """
    loss, draw, classes = LOSSES["logistic"], np.random.default_rng(1), np.array([0, 1])
    for _ in range(20):
        y = (draw.random(rows) < share).astype(int)
        f = (draw.normal(size=rows) + 1.5 * y + np.log(share))[:, None]
        levels = np.floor(f / STEP + draw.random(f.shape)) * STEP
        exact, errors = metrics.evaluate(loss, f, y, classes), standard_errors(loss, f, y, classes, None)
        measured = pair_metrics.class_metrics(loss, levels, (y == 1)[:, None], classes)
        std_errors = pair_metrics.class_standard_errors(loss, levels, (y == 1)[:, None], classes)
        for name in ("auc", "log_loss", "pr_auc", "brier"):
            assert abs(measured[name] - exact[name]) < std_errors[name], name
            assert std_errors[name] == pytest.approx(errors[name], rel=0.2), name


def test_standard_errors_of_classes_and_residuals_match_rows() -> None:
    draw = np.random.default_rng(4)
    y = draw.integers(0, 3, 2000)
    f = draw.normal(size=(2000, 3)) + (y[:, None] == np.arange(3))
    loss = LOSSES["one_vs_rest"]
    std_errors = pair_metrics.class_standard_errors(loss, f, y[:, None] == np.arange(3), np.arange(3))
    exact = standard_errors(loss, f, y, np.arange(3), None)
    assert std_errors["loss"] == pytest.approx(exact["loss"], rel=0.5)
    r, targets = draw.normal(size=(2, 2000, 1))
    std_errors = pair_metrics.residual_standard_errors(LOSSES["square"], r, targets, np.array([0.0, 2.0]))
    assert std_errors["rmse"] == pytest.approx(2 / np.sqrt(2 * 2000), rel=0.3)
    assert std_errors["r2"] == pytest.approx(np.sqrt(2 / 2000), rel=0.3)


def test_the_effect_of_rounding_on_an_auc_is_estimated() -> None:
    """Scores with a deviation of 0.3 in steps of 1/8 lower the AUC; most of it is found from the rounded scores."""
    draw, changes, estimates = np.random.default_rng(0), [], []
    for _ in range(20):
        f = draw.normal(size=20_000) * 0.3
        marked = draw.random(len(f)) < 1 / (1 + np.exp(-f))
        rounded = np.floor(f * 8 + draw.random(len(f))) / 8
        changes.append(metrics.area_under_curve(marked, rounded) - metrics.area_under_curve(marked, f))
        estimates.append(pair_metrics.auc_rounding_bias(marked, rounded, 1 / 8))
    assert np.mean(changes) < -0.001
    assert abs(np.mean(changes) - np.mean(estimates)) < 0.0005
    assert pair_metrics.auc_rounding_bias(marked, np.where(f > 0, 1.0, 0.0), 1.0) < 0
