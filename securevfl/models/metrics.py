"""Metrics of f (n x c) against labels, by name: what a loss is judged by, and in which direction."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.models.log_link_losses import LogLinkLoss
from securevfl.models.loss import Loss
from securevfl.models.robust_losses import QuantileLoss

LOWER_IS_BETTER = frozenset({"loss", "rmse", "error", "log_loss", "brier", "deviance", "pinball"})
REPEATS, DRAWN = 40, 4096  # of a standard error: how often rows are drawn, how many
TOP = 0.1  # the share of rows of highest score that lift looks at
TINY = 1e-15  # the least probability that a log-loss is taken of


@dataclass
class ScoredRows:
    """Sums f (n x c) of rows beside their labels y (n,), each row counted by its weight w (n,)."""

    loss: Loss
    f: Floats
    y: NDArray[Any]
    classes: NDArray[Any]
    w: Floats

    @cached_property
    def ranks(self) -> tuple[Floats, Floats]:
        """`_above` of the positive class, of two."""
        return _above(self.y == self.classes[1], self.f[:, 0], self.w)

    @cached_property
    def proba(self) -> Floats:
        """The probability of each class (n x classes)."""
        return self.loss.proba(self.f)

    @cached_property
    def marked(self) -> NDArray[np.bool_]:
        """Which rows are of which class (n x classes)."""
        return np.asarray(self.y[:, None] == self.classes)

    @cached_property
    def said(self) -> Floats:
        """The numbers (n,) that f predicts."""
        return self.loss.mean(self.f, self.classes)

    def mean(self, values: NDArray[Any]) -> float:
        """Average values (n,) by the weights of rows."""
        return float(np.average(values, weights=self.w))


def evaluate(
    loss: Loss, f: Floats, y: NDArray[Any], classes: NDArray[Any], weights: Floats | None = None
) -> dict[str, float]:
    """All metrics that fit the loss; each row counts by its weight (n,), and all alike without any."""
    rows = ScoredRows(loss, f, y, classes, np.ones(len(f)) if weights is None else np.asarray(weights, np.float64))
    return {name: METRICS[name](rows) for name in metric_names(loss)}


def metric_names(loss: Loss) -> list[str]:
    """List the metrics that `evaluate` gives for this loss."""
    if isinstance(loss, LogLinkLoss):
        return ["deviance", "gini", "r2", "rmse", "loss"]
    if isinstance(loss, QuantileLoss):
        return ["pinball", "coverage", "loss"]
    if not loss.classifies:
        return ["r2", "rmse", "loss"]
    return ["auc", "accuracy", "error", "loss", "log_loss", "brier", *(["ks", "pr_auc", "lift"] if loss.single else [])]


def reached(name: str, value: float, target: float) -> bool:
    """Whether `value` is at least as good as `target`."""
    return value <= target if name in LOWER_IS_BETTER else value >= target


def stale(name: str, values: Sequence[float], evaluations: int, tolerance: float) -> bool:
    """Whether none of the last `evaluations` values is better by more than `tolerance` than the best before them."""
    sign = -1.0 if name in LOWER_IS_BETTER else 1.0
    before, last = values[:-evaluations], values[-evaluations:]
    return bool(before) and not max(sign * value for value in last) > max(sign * value for value in before) + tolerance


def improves(name: str, value: float, before: Sequence[float]) -> bool:
    """Whether it is better than all values before."""
    return all(value < past if name in LOWER_IS_BETTER else value > past for past in before)


def area_under_curve(positive: NDArray[np.bool_], score: Floats, weights: Floats | None = None) -> float:
    """How often a positive row has the higher score (n,) of one of each kind, a tie being half (Mann and Whitney 1947).

    nan unless there are rows of both kinds.
    """
    return _area(*_above(positive, score, weights))


def _area(found: Floats, all_: Floats) -> float:
    others = all_ - found
    if not 0 < found[-1] < all_[-1]:
        return float("nan")
    own, below = np.diff(found, prepend=0), others[-1] - others + np.diff(others, prepend=0) / 2
    return float((own * below).sum() / found[-1] / others[-1])


def kolmogorov_smirnov(positive: NDArray[np.bool_], score: Floats, weights: Floats | None = None) -> float:
    """Return the largest distance between the distributions of the score (n,) of the two kinds of rows; nan if there is
    one kind alone."""
    return _distance(*_above(positive, score, weights))


def _distance(found: Floats, all_: Floats) -> float:
    if not 0 < found[-1] < all_[-1]:
        return float("nan")
    return float(np.abs(found / found[-1] - (all_ - found) / (all_[-1] - found[-1])).max())


def average_precision(positive: NDArray[np.bool_], score: Floats, weights: Floats | None = None) -> float:
    """Return the area under precision over recall: the sum over falling scores (n,) of precision times the gain in
    recall.

    nan without a positive row.
    """
    return _precision(*_above(positive, score, weights))


def _precision(found: Floats, all_: Floats) -> float:
    if not found[-1]:
        return float("nan")
    return float((np.diff(found, prepend=0) / found[-1] * found / all_).sum())


def lift(positive: NDArray[np.bool_], score: Floats, top: float = TOP, weights: Floats | None = None) -> float:
    """How many times as often a row is positive among the share `top` of rows of highest score (n,) as among all.

    Of rows that tie at the edge it counts the mean. nan without a positive row.
    """
    return _gain(*_above(positive, score, weights), top)


def _gain(found: Floats, all_: Floats, top: float = TOP) -> float:
    if not found[-1]:
        return float("nan")
    taken = top * all_[-1]
    return float(np.interp(taken, np.append(0, all_), np.append(0, found)) / taken / (found[-1] / all_[-1]))


def calibration(found: NDArray[Any], said: Floats, bins: int = 10, weights: Floats | None = None) -> Floats:
    """Compare predictions with what was found: a row (mean of what was said, mean of what was found, rows) for each of
    at most `bins` parts of the rows, equally large, by rising `said` (n,). These are probabilities and which rows
    are positive, or numbers and labels; means are weighted."""
    w = np.ones(len(said)) if weights is None else weights
    parts = [rows for rows in np.array_split(np.argsort(said, kind="stable"), min(bins, len(said))) if w[rows].any()]
    means = [[np.average(each[rows], weights=w[rows]) for each in (said, found)] for rows in parts]
    return np.array([[*own, len(rows)] for own, rows in zip(means, parts, strict=True)])


def standard_errors(
    loss: Loss, f: Floats, y: NDArray[Any], classes: NDArray[Any], weights: Floats | None
) -> dict[str, float]:
    """Return the standard error of each metric: how far it would be off with other rows of the same kind.

    By drawing rows anew (Efron 1979), REPEATS times of at most DRAWN, fixed draws; of more rows it falls with the root.
    Rows without one of two classes say nothing, and are left out.
    """
    draw, n = np.random.default_rng(0), len(f)
    size, found = min(n, DRAWN), list[list[float]]()
    kept = np.sort(draw.permutation(n)[:size])
    f, y, w = f[kept], y[kept], np.ones(size) if weights is None else weights[kept]
    for _ in range(REPEATS):
        counts = np.bincount(draw.integers(0, size, size), minlength=size) * w
        taken = counts > 0
        if loss.classifies and len(np.unique(y[taken])) < min(2, len(classes)):
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            found.append(list(evaluate(loss, f[taken], y[taken], classes, counts[taken]).values()))
    if len(found) < 2:
        return {}
    with np.errstate(invalid="ignore"):
        errors = np.std(np.array(found), axis=0, ddof=1) * np.sqrt(size / n)
    return {name: float(each) for name, each in zip(metric_names(loss), errors, strict=True) if np.isfinite(each)}


def _above(positive: NDArray[np.bool_], score: Floats, weights: Floats | None = None) -> tuple[Floats, Floats]:
    """Add up, for each different score from the highest on, the positive rows and all rows whose score is as high or
    higher, each by its weight."""
    _, place = np.unique(-score, return_inverse=True)
    w = np.ones(len(score)) if weights is None else weights
    return np.cumsum(np.bincount(place, weights=positive * w)), np.cumsum(np.bincount(place, weights=w))


def gini(y: Floats, score: Floats, weights: Floats | None = None) -> float:
    """How well the score (n,) ranks amounts y (n,) of 0 or more; 1 is the order of y itself, 0 none.

    The Gini index of their sum over rows by rising score, over that of rows by rising amount (Frees, Meyers and
    Cummings 2011).
    """
    w = np.ones(len(y)) if weights is None else weights
    best = _concentration(y, y, w)
    return _concentration(y, score, w) / best if best else float("nan")


def concordance(time: NDArray[Any], happened: NDArray[np.bool_], risk: Floats) -> float:
    """Return the share of pairs of rows, of which one is known to have gone first, in which that one has the higher
    risk (n,), ties being half (Harrell and others 1982).

    time (n,): when it happened, or until when a row was watched. It takes n^2 comparisons.
    """
    found = pairs = 0.0
    for row in np.flatnonzero(happened):
        later = (time > time[row]) | ((time == time[row]) & ~happened)
        pairs += int(later.sum())
        found += int((risk[later] < risk[row]).sum()) + int((risk[later] == risk[row]).sum()) / 2
    return found / pairs if pairs else float("nan")


def _concentration(y: Floats, by: Floats, w: Floats) -> float:
    """1 less twice the area under the share of y in the rows of lowest `by`; ties lie on a line."""
    _, place = np.unique(by, return_inverse=True)
    rows, sums = np.bincount(place, weights=w) / w.sum(), np.bincount(place, weights=y * w) / (y * w).sum()
    share = np.cumsum(sums)
    return float(1 - (rows * (2 * share - sums)).sum())


def _auc(rows: ScoredRows) -> float:
    """AUC of two classes; of several, the mean over the classes of that of each against all others, by probability
    (Provost and Domingos 2000)."""
    if rows.loss.single:
        return _area(*rows.ranks)
    pairs = zip(rows.marked.T, rows.proba.T, strict=True)
    return float(np.mean([area_under_curve(own, column, rows.w) for own, column in pairs]))


def _accuracy(rows: ScoredRows) -> float:
    best = (rows.f[:, 0] > 0).astype(int) if rows.f.shape[1] == 1 else rows.f.argmax(axis=1)
    return rows.mean(rows.classes[best] == rows.y)


def _log_loss(rows: ScoredRows) -> float:
    return rows.mean(-np.log(np.clip((rows.proba * rows.marked).sum(axis=1), TINY, 1)))


def _brier(rows: ScoredRows) -> float:
    """Return the mean squared error of the positive class's probability of two; of several, summed over the classes."""
    squares = ((rows.proba - rows.marked) ** 2).sum(axis=1)
    return rows.mean(squares) / (2 if len(rows.classes) == 2 else 1)


def _r2(rows: ScoredRows) -> float:
    variance = rows.mean((rows.y - np.average(rows.y, weights=rows.w)) ** 2)
    return float(1 - np.divide(rows.mean((rows.said - rows.y) ** 2), variance))


def _deviance(rows: ScoredRows) -> float:
    """Return the mean unit deviance, in the units of the labels."""
    assert isinstance(rows.loss, LogLinkLoss), "others have none"
    return rows.mean(rows.loss.deviance(np.asarray(rows.y, np.float64), rows.said))


def _pinball(rows: ScoredRows) -> float:
    """Return the mean loss of the quantile, in the units of the labels."""
    assert isinstance(rows.loss, QuantileLoss), "others have no quantile"
    over, quantile = rows.said - rows.y, rows.loss.quantile
    return rows.mean(np.maximum(-quantile * over, (1 - quantile) * over))


METRICS: dict[str, Callable[[ScoredRows], float]] = {
    "auc": _auc,
    "accuracy": _accuracy,
    "error": lambda rows: 1.0 - _accuracy(rows),
    "loss": lambda rows: rows.mean(rows.loss.value(rows.f, rows.loss.targets(rows.y, rows.classes))),
    "log_loss": _log_loss,
    "brier": _brier,
    "ks": lambda rows: _distance(*rows.ranks),
    "pr_auc": lambda rows: _precision(*rows.ranks),
    "lift": lambda rows: _gain(*rows.ranks),
    "r2": _r2,
    "rmse": lambda rows: math.sqrt(rows.mean((rows.said - rows.y) ** 2)),
    "deviance": _deviance,
    "gini": lambda rows: gini(np.asarray(rows.y, np.float64), rows.f[:, 0], rows.w),
    "pinball": _pinball,
    "coverage": lambda rows: rows.mean(rows.y <= rows.said),  # the share of labels that are at most what is predicted
}
