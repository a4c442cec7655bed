"""Metrics equal scikit-learn's, on scores with ties, for two and for several classes."""

import numpy as np
import pytest
from sklearn import metrics as oracle
from sklearn.calibration import calibration_curve

from securevfl.models import metrics
from securevfl.models.losses import LOSSES
from securevfl.models.standard_errors import standard_errors

GENERATOR = np.random.default_rng(3)
N = 500
SCORE = np.round(GENERATOR.normal(size=N), 1)  # with ties
POSITIVE = GENERATOR.random(N) < 1 / (1 + np.exp(-2 * SCORE))


@pytest.mark.parametrize("name", ["logistic", "smooth_hinge"])
def test_two_classes(name: str) -> None:
    loss, y = LOSSES[name], np.where(POSITIVE, "yes", "no")
    measured = metrics.evaluate(loss, SCORE[:, None], y, loss.classes(y))
    assert list(measured) == metrics.metric_names(loss)
    proba = loss.proba(SCORE[:, None])[:, 1]
    false, true, _ = oracle.roc_curve(POSITIVE, SCORE, drop_intermediate=False)
    expected = {
        "auc": oracle.roc_auc_score(POSITIVE, SCORE),
        "log_loss": oracle.log_loss(POSITIVE, proba),
        "brier": oracle.brier_score_loss(POSITIVE, proba),
        "ks": np.max(true - false),
        "pr_auc": oracle.average_precision_score(POSITIVE, SCORE),
    }
    for metric, value in expected.items():
        assert measured[metric] == pytest.approx(value, abs=1e-12), metric


def test_several_classes() -> None:
    loss, y = LOSSES["softmax"], GENERATOR.integers(0, 3, N)
    f = GENERATOR.normal(size=(N, 3)) + (y[:, None] == np.arange(3))
    measured = metrics.evaluate(loss, f, y, np.arange(3))
    assert measured["auc"] == pytest.approx(oracle.roc_auc_score(y, loss.proba(f), multi_class="ovr"), abs=1e-12)
    assert measured["log_loss"] == pytest.approx(oracle.log_loss(y, loss.proba(f)), abs=1e-12)
    squares = (loss.proba(f) - np.eye(3)[y]) ** 2
    assert measured["brier"] == pytest.approx(squares.sum(axis=1).mean(), abs=1e-12)


def test_lift_compares_the_first_rows_with_all_rows() -> None:
    score = np.arange(N)[::-1].astype(float)
    positive = np.arange(N) < 100
    assert metrics.lift(positive, score) == pytest.approx(5.0)
    assert metrics.lift(positive, -score) == 0.0
    assert metrics.lift(positive, np.zeros(N)) == pytest.approx(1.0)  # ties carry no information
    assert metrics.lift(positive, score, top=0.5) == pytest.approx(2.0)


def test_calibration_is_scikit_learns_of_equal_parts() -> None:
    proba = GENERATOR.random(N)
    bins = metrics.calibration(GENERATOR.random(N) < proba, proba)
    assert bins[:, 2].sum() == N
    positive = GENERATOR.random(N) < proba**2
    share, mean = calibration_curve(positive, proba, n_bins=10, strategy="quantile")
    np.testing.assert_allclose(metrics.calibration(positive, proba)[:, :2], np.column_stack([mean, share]), atol=1e-12)


def test_rows_of_one_kind_have_no_rank() -> None:
    for positive in (np.ones(5, bool), np.zeros(5, bool)):
        assert np.isnan(metrics.kolmogorov_smirnov(positive, np.arange(5.0)))
    assert np.isnan(metrics.average_precision(np.zeros(5, bool), np.arange(5.0)))
    assert np.isnan(metrics.lift(np.zeros(5, bool), np.arange(5.0)))


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_weights_count_as_so_many_rows_in_every_metric(name: str) -> None:
    """For every loss, metrics of rows with integer weights equal those of rows that are repeated so often."""
    loss, draw = LOSSES[name], np.random.default_rng(8)
    y = draw.integers(0, 3 if not loss.single else 2, N) if loss.classifies else draw.gamma(2.0, size=N)
    classes = loss.classes(y)
    f = np.round(draw.normal(size=(N, loss.outputs(classes))), 1)
    counts = draw.integers(0, 4, N)
    weighted = metrics.evaluate(loss, f, y, classes, counts.astype(float))
    again = metrics.evaluate(loss, np.repeat(f, counts, axis=0), np.repeat(y, counts), classes)
    assert weighted == pytest.approx(again, rel=1e-9)
    assert weighted != pytest.approx(metrics.evaluate(loss, f, y, classes), rel=1e-3)


@pytest.mark.parametrize("name", LOSSES)
def test_standard_errors_are_those_of_the_rows_that_weigh(name: str) -> None:
    """Of every metric of every loss: where nine rows of ten weigh next to nothing it is that of the others alone, some
    three times as large, to a part that draws of rows make."""
    loss, draw, rows = LOSSES[name], np.random.default_rng(8), 3000
    y = draw.integers(0, 3 if not loss.single else 2, rows) if loss.classifies else draw.gamma(2.0, size=rows)
    classes = loss.classes(y)
    f = draw.normal(size=(rows, loss.outputs(classes))) * 0.3
    heavy = np.arange(rows) % 10 == 0
    alone = standard_errors(loss, f[heavy], y[heavy], classes, None)
    weighted = standard_errors(loss, f, y, classes, np.where(heavy, 1.0, 1e-9))
    assert weighted.keys() == alone.keys()
    for metric, error in alone.items():
        assert 0.5 * error < weighted[metric] < 2.0 * error, metric


@pytest.mark.parametrize(
    ("rows", "share"), [(150, 0.3), *(pytest.param(6000, share, marks=pytest.mark.slow) for share in (0.3, 0.02))]
)
def test_standard_errors_are_the_deviations_over_other_rows(rows: int, share: float) -> None:
    """Compare with the deviations of metrics over 40 fixed tables, which estimate a deviation to a ninth."""
    loss, draw, classes = LOSSES["logistic"], np.random.default_rng(2), np.array([0, 1])
    values, errors = [], []
    for _ in range(40):
        y = (draw.random(rows) < share).astype(int)
        f = (draw.normal(size=rows) + y + np.log(share))[:, None]
        values.append(metrics.evaluate(loss, f, y, classes))
        errors.append(standard_errors(loss, f, y, classes, None))
    for name in ("auc", "log_loss", "accuracy", "brier"):
        deviation = np.std([sample[name] for sample in values])
        assert np.mean([estimate[name] for estimate in errors]) == pytest.approx(deviation, rel=0.35), name
