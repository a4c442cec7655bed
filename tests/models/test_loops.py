"""Metrics, their errors and figures of groups equal loops over rows and numeric derivatives, on rows that are hard.

The rows have tied scores, exact zeros, weights of zero, and a class of 1 %, where formulas that exchange two classes,
two masks or two sides of an inequality differ from the right ones.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from securevfl.models import metrics, paired_auc
from securevfl.models.class_figures import class_figures
from securevfl.models.group_metrics import MIN_GROUP_ROWS, metrics_by_group, rates_from_counts
from securevfl.models.log_link_losses import LogLinkLoss, NegativeBinomialLoss, TweedieLoss
from securevfl.models.losses import LOSSES
from securevfl.models.metrics import METRICS, ScoredRows
from securevfl.models.pair_metrics import (
    class_metrics,
    class_standard_errors,
    mean_average_precision,
    residual_metrics,
    residual_standard_errors,
)
from securevfl.models.robust_losses import QuantileLoss
from securevfl.models.standard_errors import INFLUENCES, mean_influence, standard_errors
from securevfl.training.partner_gain import PartnerGain
from tests.hard_tables import HardRows, scored_rows

CLASSIFYING = [name for name, loss in LOSSES.items() if loss.classifies]


def auc_of_pairs(positive: Any, score: Any, w: Any) -> float:
    wins = total = 0.0
    for i in np.flatnonzero(positive):
        for j in np.flatnonzero(~positive):
            total += w[i] * w[j]
            wins += w[i] * w[j] * (1.0 if score[i] > score[j] else 0.5 if score[i] == score[j] else 0.0)
    return wins / total


def by_loops(name: str, loss: Any, rows: HardRows) -> float:
    """Return a metric as its definition states it, from sums over single rows."""
    f, y, classes, w = rows
    total = w.sum()

    def mean(values: list[float]) -> float:
        return sum(weight * value for weight, value in zip(w, values, strict=True)) / total

    proba = loss.proba(f) if loss.classifies else None
    positive, score = y == classes[-1], f[:, 0]
    thresholds = sorted(set(score.tolist()), reverse=True)
    reached = [(float((w * (score >= t) * positive).sum()), float((w * (score >= t)).sum())) for t in thresholds]
    positives, negatives = float((w * positive).sum()), float((w * ~positive).sum())
    predicted = None if loss.classifies else loss.mean(f, classes)
    match name:
        case "auc":
            if loss.single:
                return auc_of_pairs(positive, score, w)
            return float(np.mean([auc_of_pairs(y == label, proba[:, k], w) for k, label in enumerate(classes)]))
        case "accuracy" | "error":
            if f.shape[1] == 1:
                hits = [classes[1 if value[0] > 0 else 0] == label for value, label in zip(f, y, strict=True)]
            else:
                hits = [classes[int(value.argmax())] == label for value, label in zip(f, y, strict=True)]
            return mean(hits) if name == "accuracy" else 1 - mean(hits)
        case "loss":
            return mean(
                [float(loss.value(f[i : i + 1], loss.targets(y[i : i + 1], classes)).sum()) for i in range(len(y))]
            )
        case "log_loss":
            at = [int(np.flatnonzero(classes == label)[0]) for label in y]
            return mean([-math.log(max(proba[i, k], metrics.MIN_LOG_PROBABILITY)) for i, k in enumerate(at)])
        case "brier":
            if len(classes) == 2:
                return mean([(proba[i, 1] - positive[i]) ** 2 for i in range(len(y))])
            return mean([sum((proba[i, k] - (y[i] == c)) ** 2 for k, c in enumerate(classes)) for i in range(len(y))])
        case "ks":
            return max(abs(hit / positives - (rows - hit) / negatives) for hit, rows in reached)
        case "pr_auc":
            gains = [hit - before for (hit, _), (before, _) in zip(reached, [(0.0, 0.0), *reached], strict=False)]
            pairs = zip(gains, reached, strict=True)
            return sum(gain / positives * hit / count for gain, (hit, count) in pairs if count)
        case "lift":
            needed, hits, before = metrics.LIFT_SHARE * total, 0.0, (0.0, 0.0)
            for hit, count in reached:
                if count >= needed:
                    hits = before[0] + (hit - before[0]) * (needed - before[1]) / (count - before[1])
                    break
                before = hit, count
            return hits / needed / (positives / total)
        case "r2":
            centre = mean(y.tolist())
            return 1 - mean([(a - b) ** 2 for a, b in zip(predicted, y, strict=True)]) / mean(
                [(v - centre) ** 2 for v in y]
            )
        case "rmse":
            return math.sqrt(mean([(a - b) ** 2 for a, b in zip(predicted, y, strict=True)]))
        case "deviance":
            return mean([float(loss.deviance(y[i : i + 1], predicted[i : i + 1])[0]) for i in range(len(y))])
        case "gini":
            return lorenz(y, score, w) / lorenz(y, y, w)
        case "pinball":
            q = loss.quantile
            return mean([q * (b - a) if b >= a else (1 - q) * (a - b) for a, b in zip(predicted, y, strict=True)])
        case "coverage":
            return mean([b <= a for a, b in zip(predicted, y, strict=True)])
    raise AssertionError(f"the test lacks metric {name}")


def lorenz(y: Any, by: Any, w: Any) -> float:
    """Return 1 - 2 * (area under the Lorenz curve), with one corner for each distinct value of `by`."""
    area = x = share = 0.0
    for value in sorted(set(by.tolist())):
        here = by == value
        dx, dy = (w * here).sum() / w.sum(), (w * y * here).sum() / (w * y).sum()
        area, x, share = area + dx * (share + dy / 2), x + dx, share + dy
    assert (x, share) == pytest.approx((1, 1))
    return 1 - 2 * area


@pytest.mark.parametrize("name", LOSSES)
def test_every_metric_is_that_of_a_loop_over_rows(name: str) -> None:
    loss = LOSSES[name]
    rows = scored_rows(loss, 160)
    measured = metrics.evaluate(loss, *rows)
    assert list(measured) == metrics.metric_names(loss)
    for metric, value in measured.items():
        assert value == pytest.approx(by_loops(metric, loss, rows), rel=1e-9, abs=1e-12), metric


@pytest.mark.parametrize("quantile", [0.1, 0.9])
def test_quantiles_away_from_the_median(quantile: float) -> None:
    loss = QuantileLoss(quantile=quantile)
    rows = scored_rows(loss, 160)
    rows.y[:20] = loss.mean(rows.f, rows.classes)[:20]  # labels exactly at the prediction are covered
    for metric, value in metrics.evaluate(loss, *rows).items():
        assert value == pytest.approx(by_loops(metric, loss, rows), rel=1e-9), metric


@pytest.mark.parametrize("name", LOSSES)
def test_an_influence_is_the_derivative_of_its_metric(name: str) -> None:
    """Scaled by the weight, and by n / (n - 1) of the rows that count, or for AUC those of either class."""
    loss = LOSSES[name]
    f, y, classes, w = scored_rows(loss, 120)
    step = 1e-6
    for metric in metrics.metric_names(loss):
        if metric not in INFLUENCES:
            continue
        influence = INFLUENCES[metric](ScoredRows(loss, f, y, classes, w))
        sign = -1 if metric in ("error",) else 1  # the error's influence is that of accuracy, with the other sign
        expected = np.zeros(len(y))
        for i in range(len(y)):
            up, down = w.copy(), w.copy()
            up[i] *= 1 + step
            down[i] *= 1 - step
            slopes = [METRICS[metric](ScoredRows(loss, f, y, classes, weights)) for weights in (up, down)]
            expected[i] = sign * (slopes[0] - slopes[1]) / (2 * step)
        if metric == "auc":
            check_auc_influence(influence, expected, y, classes, w, single=loss.single)
            continue
        counted = int((w > 0).sum())
        np.testing.assert_allclose(influence, expected * math.sqrt(counted / (counted - 1)), rtol=1e-4, atol=1e-8)


def check_auc_influence(influence: Any, expected: Any, y: Any, classes: Any, w: Any, *, single: bool) -> None:
    if not single:  # each row is positive for one class and negative for others, with factors near 1
        np.testing.assert_allclose(influence, expected, rtol=0.5, atol=2e-3)
        return
    for members in (y == classes[1], y != classes[1]):
        count = int((members & (w > 0)).sum())
        factor = math.sqrt(count / (count - 1))
        np.testing.assert_allclose(influence[members], expected[members] * factor, rtol=1e-4, atol=1e-8)


def test_the_error_of_an_auc_is_delongs_on_rare_positives() -> None:
    """DeLong's two variances, from placements of single rows: they differ by a factor of 100 if classes do."""
    loss = LOSSES["logistic"]
    f, y, classes, _ = scored_rows(loss, 600)
    score, positive = f[:, 0], y == classes[1]
    above = [np.mean((score[~positive] < s) + (score[~positive] == s) / 2) for s in score[positive]]
    below = [np.mean((score[positive] > s) + (score[positive] == s) / 2) for s in score[~positive]]
    variance = np.var(above, ddof=1) / len(above) + np.var(below, ddof=1) / len(below)
    assert positive.mean() == pytest.approx(0.01)
    assert standard_errors(loss, f, y, classes, None, ("auc",))["auc"] == pytest.approx(math.sqrt(variance))


def test_two_rows_of_a_class_have_an_error_and_one_row_has_none() -> None:
    loss, classes = LOSSES["logistic"], np.array([0, 1])
    f = np.arange(40.0)[:, None] % 7
    for positives, has_error in ((1, False), (2, True), (38, True), (39, False)):
        y = (np.arange(40) < positives).astype(int)
        errors = standard_errors(loss, f, y, classes, None)
        assert all((name in errors) == has_error for name in ("auc", "ks", "pr_auc", "lift")), positives
        weights = np.where(np.arange(40) == 0, 0.0, 1.0)  # a row without weight is none
        assert ("auc" in standard_errors(loss, f, y, classes, weights)) == (3 <= positives < 39 or positives == 39 - 1)
    two = mean_influence(np.array([1.0, 3.0, 9.0]), np.array([1.0, 1.0, 0.0]))
    assert math.sqrt((two**2).sum()) == pytest.approx(np.std([1, 3], ddof=1) / math.sqrt(2))


@pytest.mark.parametrize("name", CLASSIFYING)
def test_metrics_of_pairs_are_those_of_rows_in_another_order(name: str) -> None:
    """Each output has its own order; figures of one class against the rest do not hang on the order."""
    loss = LOSSES[name]
    f, y, classes, _ = scored_rows(loss, 160)
    generator = np.random.default_rng(1)
    labels = np.array([classes[1]]) if loss.single else classes
    marked = y[:, None] == labels
    orders = [generator.permutation(len(f)) for _ in labels]
    shuffled = np.stack([f[order, k] for k, order in enumerate(orders)], axis=1)
    marks = np.stack([marked[order, k] for k, order in enumerate(orders)], axis=1)
    measured = class_metrics(loss, shuffled, marks, classes)
    ones = np.ones(len(y))
    if loss.single:
        for metric, value in measured.items():
            if metric != "pr_auc":
                assert value == pytest.approx(by_loops(metric, loss, HardRows(f, y, classes, ones))), metric
        assert class_standard_errors(loss, shuffled, marks, classes)["auc"] == pytest.approx(
            standard_errors(loss, f, y, classes, None, ("auc",))["auc"]
        )
        return
    areas = [auc_of_pairs(y == label, f[:, k], ones) for k, label in enumerate(classes)]
    assert measured["auc"] == pytest.approx(np.mean(areas))
    binary = [
        LOSSES["logistic"].value(f[:, [k]], np.where(y == label, 1.0, -1.0)[:, None]) for k, label in enumerate(classes)
    ]
    if name == "one_vs_rest":
        assert measured["loss"] == pytest.approx(sum(value.mean() for value in binary))
    errors = class_standard_errors(loss, shuffled, marks, classes)
    parts = [
        standard_errors(
            LOSSES["logistic"], f[:, [k]], np.where(y == label, 1, -1), np.array([-1, 1]), None, ("auc", "loss")
        )
        for k, label in enumerate(classes)
    ]
    assert errors["auc"] == pytest.approx(math.sqrt(sum(part["auc"] ** 2 for part in parts)) / len(classes))
    assert errors["loss"] == pytest.approx(math.sqrt(sum(part["loss"] ** 2 for part in parts)))


def test_precision_of_ties_is_the_mean_over_all_their_orders() -> None:
    """All 5! orders of five tied rows between others, of which one or four are positive."""
    for marks in ([1, 0, 0, 0, 0], [1, 1, 1, 1, 0], [0, 0, 0, 0, 0], [1, 1, 0, 0, 0]):
        score = np.array([3.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
        positive = np.array([0, 1, *marks, 1], bool)
        means = []
        for order in itertools.permutations(range(2, 7)):
            ranked = positive[[0, 1, *order, 7]]
            hits = np.cumsum(ranked)
            means.append(np.mean([hits[k] / (k + 1) for k in np.flatnonzero(ranked)]))
        assert mean_average_precision(positive, score) == pytest.approx(np.mean(means)), marks


@pytest.mark.parametrize("name", [name for name, loss in LOSSES.items() if not loss.classifies])
def test_metrics_of_residuals_are_those_of_rows(name: str) -> None:
    loss = LOSSES[name]
    if loss.single and name in ("square", "huber", "quantile"):
        f, y, classes, _ = scored_rows(loss, 160)
        targets = loss.targets(y, classes)
        order = np.random.default_rng(2).permutation(len(f))
        measured = residual_metrics(loss, (f - targets)[order], targets, classes)
        for metric, value in measured.items():
            expected = by_loops(metric, loss, HardRows(f, y, classes, np.ones(len(y))))
            assert value == pytest.approx(expected, rel=1e-9), metric
        errors = residual_standard_errors(loss, (f - targets)[order], targets, classes)
        squares = ((f - targets) ** 2).ravel()
        if "r2" in errors:
            deviation = math.sqrt((mean_influence(squares, np.ones(len(y))) ** 2).sum())
            assert deviation == pytest.approx(squares.std(ddof=1) / math.sqrt(len(y)))
            assert errors["r2"] == pytest.approx(deviation / targets.var())


def test_group_rates_are_row_counts_down_to_the_smallest_group() -> None:
    """Groups of MIN_GROUP_ROWS - 1, MIN_GROUP_ROWS and MIN_GROUP_ROWS + 1 rows, with 1 % of one class."""
    loss, sizes = LOSSES["logistic"], (MIN_GROUP_ROWS - 1, MIN_GROUP_ROWS, MIN_GROUP_ROWS + 1, 3 * MIN_GROUP_ROWS)
    f, y, classes, _ = scored_rows(loss, sum(sizes))
    groups = np.repeat(["few", "at", "above", "many"], sizes)
    y[groups == "at"] = 0
    measured = metrics_by_group(loss, f, y, classes, groups)
    assert set(measured) == {"at", "above", "many"}
    for name, figures in measured.items():
        here = groups == name
        chosen, positive = f[here, 0] > 0, y[here] == 1
        counts = [
            int((a & b).sum())
            for a, b in ((chosen, positive), (chosen, ~positive), (~chosen, positive), (~chosen, ~positive))
        ]
        expected = rates_from_counts(*counts)
        assert expected["rows"] == sum(counts) == figures["rows"] == here.sum()
        assert expected["rate"] == figures["rate"] == (counts[0] + counts[2]) / sum(counts)
        assert expected["selected"] == figures["selected"] == (counts[0] + counts[1]) / sum(counts)
        assert expected["false_positive"] == figures["false_positive"] == counts[1] / (counts[1] + counts[3])
        hits = counts[0] + counts[2]
        if hits:
            assert expected["true_positive"] == figures["true_positive"] == counts[0] / hits
        else:
            assert math.isnan(expected["true_positive"])
            assert math.isnan(figures["true_positive"])
        assert figures["predicted"] == pytest.approx(loss.proba(f[here])[:, 1].mean())


def test_concordance_is_a_loop_over_pairs_with_ties() -> None:
    generator = np.random.default_rng(3)
    time, happened = generator.integers(1, 8, 80), generator.random(80) < 0.6
    risk = np.round(generator.normal(size=80), 0)
    wins = pairs = 0.0
    for i, j in itertools.permutations(range(80), 2):
        first = happened[i] and (time[i] < time[j] or (time[i] == time[j] and not happened[j]))
        pairs += first
        wins += first * (1.0 if risk[i] > risk[j] else 0.5 if risk[i] == risk[j] else 0.0)
    assert metrics.concordance(time, happened, risk) == pytest.approx(wins / pairs)


def test_calibration_with_weights_is_a_loop_over_bins() -> None:
    loss = LOSSES["logistic"]
    f, y, _, w = scored_rows(loss, 203)
    predicted = f[:, 0]
    order = sorted(range(203), key=lambda row: (predicted[row], row))
    points = metrics.calibration(y, predicted, 10, w)
    assert points[:, 2].tolist() == [21, 21, 21, *[20] * 7]
    start = 0
    for mean, label, rows in points:
        here = order[start : start + int(rows)]
        start += int(rows)
        assert mean == pytest.approx(sum(w[i] * predicted[i] for i in here) / sum(w[i] for i in here))
        assert label == pytest.approx(sum(w[i] * y[i] for i in here) / sum(w[i] for i in here))
    assert len(metrics.calibration(y[:4], predicted[:4], 10)) == 4
    weightless = np.where(np.isin(np.arange(203), order[:21]), 0.0, 1.0)
    assert len(metrics.calibration(y, predicted, 10, weightless)) == 9


NO_DIRECTION = frozenset({"coverage"})
"""Metrics of which neither larger nor smaller values are better."""


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_outputs_of_the_labels_are_better_than_others(name: str) -> None:
    """In every decision about every metric, and in the gain by a partner's columns."""
    loss, draw = LOSSES[name], np.random.default_rng(6)
    y = draw.integers(0, 2 if loss.single else 4, 200) if loss.classifies else draw.gamma(2.0, size=200) + 0.1
    classes = loss.classes(y)
    targets = loss.targets(y, classes)
    good = np.log(np.maximum(targets, 1e-3)) if isinstance(loss, LogLinkLoss) else 2.0 * targets - loss.classifies
    if not loss.classifies and not isinstance(loss, LogLinkLoss):
        good = targets
    better, worse = (metrics.evaluate(loss, f, y, classes) for f in (good, draw.permutation(good)))
    assert set(better) & NO_DIRECTION == ({"coverage"} if name == "quantile" else set())
    for metric in better.keys() - NO_DIRECTION:
        high, low = better[metric], worse[metric]
        assert metrics.improves(metric, high, [low])
        assert not metrics.improves(metric, low, [high])
        assert metrics.reached(metric, high, low)
        assert not metrics.reached(metric, low, high)
        assert metrics.stale(metric, [high, low], 1, 0.0)
        assert not metrics.stale(metric, [low, high], 1, 0.0)
        assert (
            PartnerGain(metric, low, None, high, None, None).gain
            > 0
            > PartnerGain(metric, high, None, low, None, None).gain
        )


@pytest.mark.parametrize("name", sorted(metrics.LOWER_IS_BETTER | {"auc", "r2"}))
def test_decisions_at_exact_ties(name: str) -> None:
    """A value equal to the target reaches it; equal values neither improve nor keep a training going."""
    better, worse = (0.5, 0.75) if name in metrics.LOWER_IS_BETTER else (0.75, 0.5)
    assert metrics.reached(name, better, better)
    assert metrics.reached(name, better, worse)
    assert not metrics.reached(name, worse, better)
    assert metrics.improves(name, better, [worse, worse])
    assert not metrics.improves(name, better, [worse, better])
    assert not metrics.improves(name, worse, [better])
    assert metrics.stale(name, [better, worse, better], 2, 0.0)
    assert not metrics.stale(name, [worse, worse, better], 2, 0.0)
    assert metrics.stale(name, [worse, worse, better], 2, 0.25)  # better by the tolerance, and not by more
    assert not metrics.stale(name, [worse, better], 2, 0.0)  # nothing is earlier
    assert metrics.stale(name, [better, worse], 1, 0.0)


def test_figures_of_a_difference_of_areas_are_those_of_loops() -> None:
    assert paired_auc.difference_error(3.0, 4.0, 0.0) == pytest.approx(5.0)
    assert paired_auc.difference_error(3.0, 4.0, 0.5) == pytest.approx(math.sqrt(9 + 16 - 12))
    assert paired_auc.difference_error(3.0, 3.0, 1.0) == 0.0
    loss = LOSSES["logistic"]
    f, y, _, _ = scored_rows(loss, 400)
    other = f[:, 0] + np.random.default_rng(4).normal(size=400)
    positive = y == 1
    expected = np.mean([np.corrcoef(f[mask, 0], other[mask])[0, 1] for mask in (positive, ~positive)])
    assert paired_auc.correlation_within_classes(f[:, 0], other, positive) == pytest.approx(expected)
    assert paired_auc.correlation_within_classes(np.ones(400), other, positive) == 1.0
    points = [(0.1, 0.0, 50), (0.2, 0.1, 30), (0.9, 0.6, 20)]
    variances = []
    for share in (lambda label: label, lambda label: 1 - label):
        weights = [rows * share(label) for _, label, rows in points]
        odds = [math.log(p / (1 - p)) for p, _, _ in points]
        mean = sum(a * b for a, b in zip(weights, odds, strict=True)) / sum(weights)
        variances.append(sum(a * (b - mean) ** 2 for a, b in zip(weights, odds, strict=True)) / sum(weights))
    assert paired_auc.spread_within_classes(points) == pytest.approx(math.sqrt(np.mean(variances)))
    assert paired_auc.score_correlation(1.0, 2.0) == 0.5
    assert paired_auc.score_correlation(2.0, 1.0) == paired_auc.MAX_CORRELATION
    assert paired_auc.auc_correlation(0.8, 0.8, 0.9) > paired_auc.auc_correlation(0.8, 0.8, 0.5) > 0.3


PARAMETERISED = [QuantileLoss(0.1), QuantileLoss(0.9), TweedieLoss(1.2), TweedieLoss(1.8), NegativeBinomialLoss(0.3)]


@pytest.mark.parametrize("loss", PARAMETERISED, ids=lambda loss: f"{loss.name} {PARAMETERISED.index(loss)}")
def test_metrics_and_influences_use_the_parameters_of_a_loss(loss: Any) -> None:
    f, y, classes, w = scored_rows(loss, 120)
    rows = ScoredRows(loss, f, y, classes, w)
    counted = int((w > 0).sum())
    for metric in metrics.metric_names(loss):
        assert METRICS[metric](rows) == pytest.approx(by_loops(metric, loss, HardRows(f, y, classes, w))), metric
        if metric not in INFLUENCES:
            continue
        expected = np.zeros(len(y))
        for i in range(len(y)):
            slopes = []
            for sign in (1, -1):
                weights = w.copy()
                weights[i] *= 1 + sign * 1e-6
                slopes.append(METRICS[metric](ScoredRows(loss, f, y, classes, weights)))
            expected[i] = (slopes[0] - slopes[1]) / 2e-6 * math.sqrt(counted / (counted - 1))
        np.testing.assert_allclose(INFLUENCES[metric](rows), expected, rtol=1e-4, atol=1e-8, err_msg=metric)


@pytest.mark.parametrize("name", CLASSIFYING)
def test_a_row_of_weight_k_counts_like_k_rows(name: str) -> None:
    """In every metric, and in every figure of a class but the standard error, for which weights are no numbers."""
    loss = LOSSES[name]
    f, y, classes, _ = scored_rows(loss, 200)
    weights = np.random.default_rng(6).integers(0, 4, len(y))
    often = np.repeat(np.arange(len(y)), weights)
    w = weights.astype(float)
    assert metrics.evaluate(loss, f, y, classes, w) == pytest.approx(
        metrics.evaluate(loss, f[often], y[often], classes), nan_ok=True
    )
    weighted, repeated = class_figures(loss, f, y, classes, w), class_figures(loss, f[often], y[often], classes)
    assert weighted.keys() == repeated.keys()
    for label, figures in repeated.items():
        for figure in figures.keys() - {"auc_std_error"}:
            assert weighted[label][figure] == pytest.approx(figures[figure]), (label, figure)


@pytest.mark.parametrize("name", METRICS)
def test_a_better_value_of_every_metric_is_called_a_gain(name: str) -> None:
    for alone, together in ((0.2, 0.5), (0.5, 0.2)):
        gain = PartnerGain(name, alone, None, together, None, 0.01)
        is_better = metrics.reached(name, together, alone)
        sentence = gain.sentence("shop")
        assert (gain.gain > 0) == is_better == ("a gain of" in sentence) == ("a loss of" not in sentence)
        assert (together > alone) == (" rises " in sentence) == (" falls " not in sentence)
