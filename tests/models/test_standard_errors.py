"""Standard errors against bootstraps of all rows: rare classes, weights, many rows and all losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from securevfl.models import metrics, standard_errors
from securevfl.models.losses import LOSSES

SAMPLES = 160


def bootstrap(loss: Any, f: Any, y: Any, classes: Any, w: Any, names: list[str]) -> dict[str, float]:
    """Return the deviations of metrics over bootstrap samples of all rows."""
    draw, values = np.random.default_rng(5), []
    for _ in range(SAMPLES):
        rows = draw.integers(0, len(f), len(f))
        measured = metrics.evaluate(loss, f[rows], y[rows], classes, w[rows])
        values.append([measured[name] for name in names])
    return dict(zip(names, np.std(values, axis=0, ddof=1).tolist(), strict=True))


def scored(rows: int, positives: int) -> tuple[Any, Any]:
    """Return outputs and labels, of which some are positive."""
    draw = np.random.default_rng([rows, positives])
    y = (draw.permutation(rows) < positives).astype(int)
    f = (draw.normal(size=rows) * 1.2 + 1.3 * y + np.log(positives / rows))[:, None]
    return f, y


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("rows", "positives"), [(300, 100), (7500, 66), pytest.param(20_000, 66, marks=pytest.mark.slow)]
)
def test_errors_of_two_classes_are_within_a_fifth_of_a_bootstrap(rows: int, positives: int, weighted: bool) -> None:
    loss, classes, (f, y) = LOSSES["logistic"], np.array([0, 1]), scored(rows, positives)
    w = np.random.default_rng(7).gamma(0.7, size=rows) if weighted else np.ones(rows)
    errors = standard_errors.standard_errors(loss, f, y, classes, w if weighted else None)
    assert list(errors) == metrics.metric_names(loss)
    right = bootstrap(loss, f, y, classes, w, list(errors))
    for name, error in errors.items():
        # the bootstrap of a maximum or of a rank itself varies by more
        assert error == pytest.approx(right[name], rel=0.2 if name in standard_errors.INFLUENCES else 0.3), name


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_errors_of_every_loss_are_those_of_a_bootstrap(name: str, weighted: bool) -> None:
    loss, draw, rows = LOSSES[name], np.random.default_rng(8), 1500
    y = draw.integers(0, 3 if not loss.single else 2, rows) if loss.classifies else draw.gamma(2.0, size=rows)
    classes = loss.classes(y)
    f = draw.normal(size=(rows, loss.outputs(classes))) * 0.3
    w = draw.gamma(1.0, size=rows) if weighted else np.ones(rows)
    errors = standard_errors.standard_errors(loss, f, y, classes, w if weighted else None)
    assert list(errors) == metrics.metric_names(loss)
    right = bootstrap(loss, f, y, classes, w, list(errors))
    for metric, error in errors.items():
        bound = 0.2 if metric in standard_errors.INFLUENCES else 0.3
        assert error == pytest.approx(right[metric], rel=bound), metric


@pytest.mark.parametrize(("rows", "rare", "limit"), [(12_000, 66, 6000), (8000, 4000, 1000), (8000, 400, 400)])
def test_many_rows_are_resampled_in_strata(monkeypatch: pytest.MonkeyPatch, rows: int, rare: int, limit: int) -> None:
    """All rows of a rare class count, and a part of a class of more rows than the limit, scaled to all."""
    loss, classes, (f, y) = LOSSES["logistic"], np.array([0, 1]), scored(rows, rare)
    names = ["ks", "pr_auc", "lift"]
    whole = standard_errors.standard_errors(loss, f, y, classes, None, names)
    monkeypatch.setattr(standard_errors, "MAX_BOOTSTRAP_ROWS", limit)
    parts = standard_errors.standard_errors(loss, f, y, classes, None, names)
    for name, bound in zip(names, (0.3, 0.6, 0.3), strict=True):  # few rows at the top decide on precision
        assert parts[name] == pytest.approx(whole[name], rel=bound), name


def test_a_class_of_one_row_has_no_error_of_rankings() -> None:
    loss, classes, (f, y) = LOSSES["logistic"], np.array([0, 1]), scored(200, 1)
    errors = standard_errors.standard_errors(loss, f, y, classes, None)
    assert not {"auc", "ks", "pr_auc", "lift"} & errors.keys()
    assert {"loss", "brier", "accuracy"} <= errors.keys()


@pytest.mark.parametrize("name", metrics.RANKINGS)
def test_rankings_of_several_weightings_are_those_of_each(name: str) -> None:
    """Rows with weight 0 count as absent, as a bootstrap sample has them; scores tie."""
    draw = np.random.default_rng(9)
    loss = LOSSES["poisson" if name == "gini" else "logistic"]
    y = draw.poisson(1.0, 60) if name == "gini" else draw.integers(0, 2, 60)
    f, classes = np.round(draw.normal(size=(60, 1)), 1), loss.classes(y)
    weightings = draw.integers(0, 3, (7, 60)) * draw.gamma(1.0, size=60)
    weightings[-1] = y == 0  # no positive row, and amounts of 0 alone
    together = metrics.RANKINGS[name](metrics.ScoredRows(loss, f, y, classes, weightings))
    assert together.shape == (7,)
    for w, value in zip(weightings, together, strict=True):
        has_weight = w > 0
        alone = metrics.METRICS[name](metrics.ScoredRows(loss, f[has_weight], y[has_weight], classes, w[has_weight]))
        assert value == pytest.approx(alone, rel=1e-12, nan_ok=True)


def test_samples_do_not_depend_on_how_many_are_computed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loss, classes, (f, y) = LOSSES["logistic"], np.array([0, 1]), scored(300, 100)
    at_once = standard_errors.standard_errors(loss, f, y, classes, None)
    for weights in (1, 300 * 33, 300 * 50):  # one sample at once, a last part that is smaller, and equal parts
        monkeypatch.setattr(standard_errors, "MAX_SAMPLE_WEIGHTS", weights)
        assert standard_errors.standard_errors(loss, f, y, classes, None) == pytest.approx(at_once, rel=1e-12)
