"""Metrics of a model, computed from its outputs f (n, c) for n rows with known labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.models.log_link_losses import LogLinkLoss
from securevfl.models.loss import Loss
from securevfl.models.robust_losses import QuantileLoss

LOWER_IS_BETTER = frozenset({"loss", "rmse", "error", "log_loss", "brier", "deviance", "pinball"})
LIFT_SHARE = 0.1
"""The share of rows with the highest scores over which lift is computed."""
MIN_LOG_PROBABILITY = 1e-15
"""Probabilities are clipped to this value before log-loss takes their logarithm."""


@dataclass
class ScoredRows:
    """Outputs and labels of rows.

    Attributes:
        loss: the loss function that the training minimises (`securevfl.models.loss`).
        f: the outputs (n, c).
        y: the labels (n,).
        classes: the classes of the labels.
        w: the weights of the rows (n,); for `RANKINGS` also several weightings (k, n) at once.
    """

    loss: Loss
    f: Floats
    y: NDArray[Any]
    classes: NDArray[Any]
    w: Floats

    @cached_property
    def cumulative(self) -> tuple[Floats, Floats]:
        """For each distinct score, the weight of positive rows, and of all rows, at or above it (..., scores)."""
        return _cumulative(self.y == self.classes[1], self.f[:, 0], self.w)

    @cached_property
    def proba(self) -> Floats:
        """The probability of each class (n, classes)."""
        return self.loss.proba(self.f)

    @cached_property
    def members(self) -> NDArray[np.bool_]:
        """Whether each row belongs to each class (n, classes)."""
        return np.asarray(self.y[:, None] == self.classes)

    @cached_property
    def predictions(self) -> Floats:
        """The predicted numbers (n,)."""
        return self.loss.mean(self.f, self.classes)

    def mean(self, values: NDArray[Any]) -> float:
        """Return the weighted mean of values (n,)."""
        return float(np.average(values, weights=self.w))


def evaluate(
    loss: Loss, f: Floats, y: NDArray[Any], classes: NDArray[Any], weights: Floats | None = None
) -> dict[str, float]:
    """Compute all metrics that are defined for a loss.

    Args:
        loss: the loss function that the training minimises (`securevfl.models.loss`).
        f: the outputs (n, c).
        y: the labels (n,).
        classes: the classes of the labels.
        weights: the weights of rows (n,); by default all are equal.

    Returns:
        The metrics by name.
    """
    rows = ScoredRows(loss, f, y, classes, np.ones(len(f)) if weights is None else np.asarray(weights, np.float64))
    return {name: METRICS[name](rows) for name in metric_names(loss)}


def metric_names(loss: Loss) -> list[str]:
    """Return the names of the metrics that `evaluate` computes for this loss."""
    if isinstance(loss, LogLinkLoss):
        return ["deviance", "gini", "r2", "rmse", "loss"]
    if isinstance(loss, QuantileLoss):
        return ["pinball", "coverage", "loss"]
    if not loss.classifies:
        return ["r2", "rmse", "loss"]
    return ["auc", "accuracy", "error", "loss", "log_loss", "brier", *(["ks", "pr_auc", "lift"] if loss.single else [])]


def reached(name: str, value: float, target: float) -> bool:
    """Return whether the value of a metric is at least as good as the target value."""
    return value <= target if name in LOWER_IS_BETTER else value >= target


def stale(name: str, values: Sequence[float], evaluations: int, tolerance: float) -> bool:
    """Return whether none of the latest `evaluations` values improves the best earlier one by more than `tolerance`."""
    sign = -1.0 if name in LOWER_IS_BETTER else 1.0
    earlier, latest = values[:-evaluations], values[-evaluations:]
    return (
        bool(earlier) and not max(sign * value for value in latest) > max(sign * value for value in earlier) + tolerance
    )


def improves(name: str, value: float, earlier: Sequence[float]) -> bool:
    """Return whether the value of a metric is better than all earlier ones."""
    return all(value < other if name in LOWER_IS_BETTER else value > other for other in earlier)


def area_under_curve(positive: NDArray[np.bool_], score: Floats, weights: Floats | None = None) -> float:
    """Return the probability that a positive row has a higher score than a negative one; ties count as a half.

    This is the AUC (Mann and Whitney 1947); nan unless there are rows of both kinds.

    Args:
        positive: which rows (n,) are positive.
        score: the scores (n,).
        weights: the weights of rows (n,); by default all are equal.

    Returns:
        The area.
    """
    return _area(*_cumulative(positive, score, weights))


def _area(positives: Floats, rows: Floats) -> float:
    negatives = rows - positives
    if not 0 < positives[-1] < rows[-1]:
        return float("nan")
    gains, below = np.diff(positives, prepend=0), negatives[-1] - negatives + np.diff(negatives, prepend=0) / 2
    return float((gains * below).sum() / positives[-1] / negatives[-1])


def kolmogorov_smirnov(positive: NDArray[np.bool_], score: Floats, weights: Floats | None = None) -> float:
    """Return the largest difference of the score distributions of positive and negative rows; nan without both.

    Args:
        positive: which rows (n,) are positive.
        score: the scores (n,).
        weights: the weights of rows (n,); by default all are equal.

    Returns:
        The statistic.
    """
    return float(_distance(*_cumulative(positive, score, weights)))


def _distance(positives: Floats, rows: Floats) -> Floats:
    negatives = rows - positives
    with np.errstate(invalid="ignore"):  # 0 / 0 without rows of a class
        shares = positives / positives[..., -1:], negatives / negatives[..., -1:]
    return np.abs(shares[0] - shares[1]).max(axis=-1)


def average_precision(positive: NDArray[np.bool_], score: Floats, weights: Floats | None = None) -> float:
    """Return the area under the precision-recall curve: the sum over scores of precision * gain in recall.

    It is nan without positive rows.

    Args:
        positive: which rows (n,) are positive.
        score: the scores (n,).
        weights: the weights of rows (n,); by default all are equal.

    Returns:
        The area.
    """
    return float(_precision(*_cumulative(positive, score, weights)))


def _precision(positives: Floats, rows: Floats) -> Floats:
    precision = np.divide(positives, rows, out=np.zeros_like(positives), where=rows > 0)  # the first rows may weigh 0
    with np.errstate(invalid="ignore"):  # 0 / 0 without positive rows
        gains = np.diff(positives, prepend=0) / positives[..., -1:]
    return (gains * precision).sum(axis=-1)


def lift(positive: NDArray[np.bool_], score: Floats, top: float = LIFT_SHARE, weights: Floats | None = None) -> float:
    """Return the rate of positive rows among those with the highest scores, relative to all rows.

    It is nan without positive rows.

    Args:
        positive: which rows (n,) are positive.
        score: the scores (n,).
        top: the share of rows with the highest scores. If only some of the rows with one and the same score belong to
            this share, they count with the rate of positive rows among all rows with this score.
        weights: the weights of rows (n,); by default all are equal.

    Returns:
        The lift.
    """
    return float(_gain(*_cumulative(positive, score, weights), top))


def _gain(positives: Floats, rows: Floats, top: float = LIFT_SHARE) -> Floats:
    selected = np.asarray(top * rows[..., -1])
    curves = [np.insert(totals, 0, 0, axis=-1).reshape(-1, totals.shape[-1] + 1) for totals in (rows, positives)]
    hits = [np.interp(x, *curve) for x, *curve in zip(np.ravel(selected), *curves, strict=True)]
    with np.errstate(invalid="ignore"):  # 0 / 0 without positive rows
        return np.reshape(hits, selected.shape) / selected / (positives[..., -1] / rows[..., -1])


def calibration(actual: NDArray[Any], predicted: Floats, bins: int = 10, weights: Floats | None = None) -> Floats:
    """Return a reliability curve.

    Args:
        actual: which rows (n,) are positive, or the labels (n,) of a regression.
        predicted: the probabilities or predictions (n,).
        bins: the maximum number of equal-sized bins, by increasing prediction.
        weights: the weights of rows (n,); by default all are equal.

    Returns:
        For each bin the mean prediction, the mean label and the number of rows (bins, 3).
    """
    w = np.ones(len(predicted)) if weights is None else weights
    order = np.argsort(predicted, kind="stable")
    groups = [rows for rows in np.array_split(order, min(bins, len(predicted))) if w[rows].any()]
    means = [[np.average(values[rows], weights=w[rows]) for values in (predicted, actual)] for rows in groups]
    return np.array([[*group_means, len(rows)] for group_means, rows in zip(means, groups, strict=True)])


def _cumulative(positive: NDArray[np.bool_], score: Floats, weights: Floats | None = None) -> tuple[Floats, Floats]:
    """Return the weight of positive rows and of all rows at or above each score (..., scores), highest score first."""
    totals = _totals_by(-score)
    w = np.ones(len(score)) if weights is None else weights
    return totals(positive * w), totals(w)


def _totals_by(value: Floats) -> Callable[[Floats], Floats]:
    """Return a function that sums numbers (..., n) over all rows up to each distinct value, smallest value first."""
    order = np.argsort(value, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(value[order])), len(value) - 1)
    return lambda numbers: np.cumsum(numbers[..., order], axis=-1)[..., ends]


def gini(y: Floats, score: Floats, weights: Floats | None = None) -> float:
    """Return how well scores rank amounts: 1 for the order of the amounts, 0 for no relation.

    The result is the Gini index of the amounts over rows sorted by score, divided by their Gini index over rows sorted
    by amount (Frees, Meyers and Cummings 2011).

    Args:
        y: amounts (n,) of 0 or more.
        score: the scores (n,).
        weights: the weights of rows (n,); by default all are equal.

    Returns:
        The ratio of the two indexes.
    """
    return float(_relative_gini(y, score, np.ones(len(y)) if weights is None else weights))


def _relative_gini(y: Floats, score: Floats, w: Floats) -> Floats:
    best = np.asarray(_concentration(y, y, w))
    return np.divide(_concentration(y, score, w), best, out=np.full(best.shape, np.nan), where=best != 0)


def concordance(time: NDArray[Any], happened: NDArray[np.bool_], risk: Floats) -> float:
    """Return the concordance index (Harrell and others 1982).

    Of all pairs of rows of which one is known to have had the event first, it is the share in which that row has the
    higher risk; ties count as a half. The computation takes n^2 comparisons.

    Args:
        time: the time of the event, or of the end of observation (n,).
        happened: whether the event was observed (n,).
        risk: the predicted risk (n,).

    Returns:
        The index.
    """
    concordant = pairs = 0.0
    for row in np.flatnonzero(happened):
        later = (time > time[row]) | ((time == time[row]) & ~happened)
        pairs += int(later.sum())
        concordant += int((risk[later] < risk[row]).sum()) + int((risk[later] == risk[row]).sum()) / 2
    return concordant / pairs if pairs else float("nan")


def _concentration(y: Floats, by: Floats, w: Floats) -> Floats:
    """Return the Gini index of y: 1 - 2 * (area under the Lorenz curve of y over rows sorted by `by`)."""
    totals = _totals_by(by)
    rows, shares = (sums / sums[..., -1:] for sums in (totals(w), totals(y * w)))
    return 1 - (np.diff(rows, prepend=0) * (2 * shares - np.diff(shares, prepend=0))).sum(axis=-1)


def _auc(rows: ScoredRows) -> float:
    """Return the AUC of two classes; for several, the mean AUC of each class against all others (Provost 2000)."""
    if rows.loss.single:
        return _area(*rows.cumulative)
    pairs = zip(rows.members.T, rows.proba.T, strict=True)
    return float(np.mean([area_under_curve(members, column, rows.w) for members, column in pairs]))


def _accuracy(rows: ScoredRows) -> float:
    best = (rows.f[:, 0] > 0).astype(int) if rows.f.shape[1] == 1 else rows.f.argmax(axis=1)
    return rows.mean(rows.classes[best] == rows.y)


def _log_loss(rows: ScoredRows) -> float:
    return rows.mean(-np.log(np.clip((rows.proba * rows.members).sum(axis=1), MIN_LOG_PROBABILITY, 1)))


def _brier(rows: ScoredRows) -> float:
    """Return the mean squared error of the positive class's probability; for several classes, summed over classes."""
    squares = ((rows.proba - rows.members) ** 2).sum(axis=1)
    return rows.mean(squares) / (2 if len(rows.classes) == 2 else 1)


def _r2(rows: ScoredRows) -> float:
    variance = rows.mean((rows.y - np.average(rows.y, weights=rows.w)) ** 2)
    return float(1 - np.divide(rows.mean((rows.predictions - rows.y) ** 2), variance))


def _deviance(rows: ScoredRows) -> float:
    """Return the mean unit deviance, in the units of the labels."""
    assert isinstance(rows.loss, LogLinkLoss), "other losses have no deviance"
    return rows.mean(rows.loss.deviance(np.asarray(rows.y, np.float64), rows.predictions))


def _pinball(rows: ScoredRows) -> float:
    """Return the mean quantile loss, in the units of the labels."""
    assert isinstance(rows.loss, QuantileLoss), "other losses have no quantile"
    error, quantile = rows.predictions - rows.y, rows.loss.quantile
    return rows.mean(np.maximum(-quantile * error, (1 - quantile) * error))


def _of_one_weighting(ranking: Callable[[ScoredRows], Floats], rows: ScoredRows) -> float:
    return float(ranking(rows))


RANKINGS: dict[str, Callable[[ScoredRows], Floats]] = {
    "ks": lambda rows: _distance(*rows.cumulative),
    "pr_auc": lambda rows: _precision(*rows.cumulative),
    "lift": lambda rows: _gain(*rows.cumulative),
    "gini": lambda rows: _relative_gini(np.asarray(rows.y, np.float64), rows.f[:, 0], rows.w),
}
"""Metrics of the order of scores. Each function returns one value for every weighting of the rows."""

METRICS: dict[str, Callable[[ScoredRows], float]] = {
    "auc": _auc,
    "accuracy": _accuracy,
    "error": lambda rows: 1.0 - _accuracy(rows),
    "loss": lambda rows: rows.mean(rows.loss.value(rows.f, rows.loss.targets(rows.y, rows.classes))),
    "log_loss": _log_loss,
    "brier": _brier,
    "r2": _r2,
    "rmse": lambda rows: math.sqrt(rows.mean((rows.predictions - rows.y) ** 2)),
    "deviance": _deviance,
    "pinball": _pinball,
    "coverage": lambda rows: rows.mean(rows.y <= rows.predictions),  # labels at or below the prediction
    **{name: partial(_of_one_weighting, ranking) for name, ranking in RANKINGS.items()},
}
