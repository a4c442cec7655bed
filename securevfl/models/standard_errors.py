"""Standard errors of metrics over samples of rows: from influence functions where there are any, else by the bootstrap.

The influence of a row on a metric is the derivative of the metric by the row's weight, times the weight. The variance
of the metric is the sum of the squared influences, over all rows and with any weights. For AUC this is the formula of
DeLong, DeLong and Clarke-Pearson (1988); for a mean it is the usual one. All rows count, so rare classes are not lost
in a subsample.

Kolmogorov-Smirnov, the area under the precision-recall curve, lift and the Gini index use BOOTSTRAP_SAMPLES fixed
bootstrap samples (Efron 1979). From more than MAX_BOOTSTRAP_ROWS rows, the bootstrap is stratified: it takes all rows
of a rare class, and resamples classes one at a time (see `_bootstrap`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.models.loss import Loss
from securevfl.models.metrics import MIN_LOG_PROBABILITY, RANKINGS, ScoredRows, metric_names

BOOTSTRAP_SAMPLES, MAX_BOOTSTRAP_ROWS = 100, 16_384
"""Number of bootstrap samples, and maximum number of rows of a class in a sample."""
MAX_SAMPLE_WEIGHTS = 1 << 18
"""Maximum number of weights that are stored at once. At least one bootstrap sample is computed at a time."""
MIN_CLASS_ROWS = 2
"""Minimum number of rows of each class for which a standard error of a ranking is estimated."""

Influence = Callable[[ScoredRows], Floats]


def standard_errors(
    loss: Loss,
    f: Floats,
    y: NDArray[Any],
    classes: NDArray[Any],
    weights: Floats | None,
    names: Sequence[str] | None = None,
) -> dict[str, float]:
    """Estimate the standard error that each metric has over samples with the same number of rows.

    Args:
        loss: the loss function that the training minimises (`securevfl.models.loss`).
        f: the outputs (n, c).
        y: the labels (n,).
        classes: the classes of the labels.
        weights: the weights of rows (n,), or None.
        names: the metrics; all metrics of the loss by default.

    Returns:
        The finite errors by the names of the metrics.
    """
    w = np.ones(len(f)) if weights is None else np.asarray(weights, np.float64)
    rows = ScoredRows(loss, f, y, classes, w)
    names = metric_names(loss) if names is None else names
    errors: dict[str, float] = {}
    with np.errstate(divide="ignore", invalid="ignore"):
        for name in names:
            if name in INFLUENCES:
                errors[name] = _size(INFLUENCES[name](rows))
        errors |= _bootstrap(rows, [name for name in names if name not in INFLUENCES])
    return {name: errors[name] for name in names if math.isfinite(errors.get(name, math.nan))}


def auc_influence(positive: NDArray[np.bool_], score: Floats, w: Floats) -> Floats:
    """Return the influence (n,) of each row on the AUC, which is nan unless there are rows of both classes.

    Args:
        positive: which rows (n,) are positive.
        score: the scores (n,).
        w: the weights of rows (n,).

    Returns:
        The influences, with DeLong's correction for the number of rows of each class.
    """
    counts = [int((members & (w > 0)).sum()) for members in (positive, ~positive)]
    if min(counts) < MIN_CLASS_ROWS:
        return np.full(len(score), np.nan)
    _, level = np.unique(score, return_inverse=True)
    totals = [np.bincount(level, weights=members * w) for members in (positive, ~positive)]
    below = [np.cumsum(total) - total / 2 for total in totals]
    shares_below = below[1] / totals[1].sum()  # the share of negative rows with a lower score
    shares_above = 1 - below[0] / totals[0].sum()  # the share of positive rows with a higher score
    area = float((totals[0] * shares_below).sum() / totals[0].sum())
    factors = [math.sqrt(count / (count - 1)) for count in counts]
    of_positive = factors[0] * w * (shares_below[level] - area) / totals[0].sum()
    of_negative = factors[1] * w * (shares_above[level] - area) / totals[1].sum()
    return np.where(positive, of_positive, of_negative)


def mean_influence(values: NDArray[Any], w: Floats) -> Floats:
    """Return the influence (n,) of each row on the weighted mean of values (n,)."""
    rows = max(2, int((w > 0).sum()))
    influence: Floats = w * (values - np.average(values, weights=w)) / w.sum() * math.sqrt(rows / (rows - 1))
    return influence


def _size(influence: Floats) -> float:
    return float(np.sqrt((influence**2).sum()))


def _auc(rows: ScoredRows) -> Floats:
    if rows.loss.single:
        return auc_influence(rows.y == rows.classes[1], rows.f[:, 0], rows.w)
    pairs = zip(rows.members.T, rows.proba.T, strict=True)
    return np.mean([auc_influence(members, column, rows.w) for members, column in pairs], axis=0)


def _accuracy(rows: ScoredRows) -> Floats:
    best = (rows.f[:, 0] > 0).astype(int) if rows.f.shape[1] == 1 else rows.f.argmax(axis=1)
    return mean_influence(rows.classes[best] == rows.y, rows.w)


def _log_loss(rows: ScoredRows) -> Floats:
    values = -np.log(np.clip((rows.proba * rows.members).sum(axis=1), MIN_LOG_PROBABILITY, 1))
    return mean_influence(values, rows.w)


def _brier(rows: ScoredRows) -> Floats:
    factor = 2 if len(rows.classes) == 2 else 1
    return mean_influence(((rows.proba - rows.members) ** 2).sum(axis=1) / factor, rows.w)


def _loss(rows: ScoredRows) -> Floats:
    return mean_influence(rows.loss.value(rows.f, rows.loss.targets(rows.y, rows.classes)), rows.w)


def _squares(rows: ScoredRows) -> Floats:
    return np.asarray((rows.predictions - rows.y) ** 2, np.float64)


def _rmse(rows: ScoredRows) -> Floats:
    squares = _squares(rows)
    return mean_influence(squares, rows.w) / (2 * np.sqrt(np.average(squares, weights=rows.w)))


def _r2(rows: ScoredRows) -> Floats:
    squares = _squares(rows)
    deviations = np.asarray((rows.y - np.average(rows.y, weights=rows.w)) ** 2, np.float64)
    variance = np.average(deviations, weights=rows.w)
    ratio = np.average(squares, weights=rows.w) / variance
    return (ratio * mean_influence(deviations, rows.w) - mean_influence(squares, rows.w)) / variance


def _deviance(rows: ScoredRows) -> Floats:
    values = rows.loss.deviance(np.asarray(rows.y, np.float64), rows.predictions)  # type: ignore[attr-defined]
    return mean_influence(values, rows.w)


def _pinball(rows: ScoredRows) -> Floats:
    error, quantile = rows.predictions - rows.y, rows.loss.quantile  # type: ignore[attr-defined]
    return mean_influence(np.maximum(-quantile * error, (1 - quantile) * error), rows.w)


INFLUENCES: dict[str, Influence] = {
    "auc": _auc,
    "accuracy": _accuracy,
    "error": _accuracy,
    "loss": _loss,
    "log_loss": _log_loss,
    "brier": _brier,
    "rmse": _rmse,
    "r2": _r2,
    "deviance": _deviance,
    "pinball": _pinball,
    "coverage": lambda rows: mean_influence(rows.y <= rows.predictions, rows.w),
}


def _bootstrap(rows: ScoredRows, names: list[str]) -> dict[str, float]:
    """Return bootstrap standard errors of metrics without an influence function.

    If no class has more than MAX_BOOTSTRAP_ROWS rows, all rows are resampled together, so the number of rows of a class
    varies as it does between samples. Otherwise MAX_BOOTSTRAP_ROWS rows of each larger class are drawn and get a larger
    weight. Each class is then resampled alone, its part of the variance is scaled to all of its rows, and the parts are
    added up.
    """
    if not names:
        return {}
    generator = np.random.default_rng(0)
    strata = [np.flatnonzero(rows.w > 0)]
    if rows.loss.classifies and rows.loss.single:
        strata = [stratum[rows.y[stratum] == label] for stratum in strata for label in rows.classes]
        if min(map(len, strata)) < MIN_CLASS_ROWS:
            return {}
    drawn = [generator.permutation(stratum)[:MAX_BOOTSTRAP_ROWS] for stratum in strata]
    scales = [len(stratum) / len(sample) for stratum, sample in zip(strata, drawn, strict=True)]
    groups = [np.arange(sum(map(len, drawn)))] if max(scales) == 1 else _consecutive(drawn)
    selected = np.concatenate(drawn)
    w = rows.w[selected] * np.repeat(scales, list(map(len, drawn)))
    sample = ScoredRows(rows.loss, rows.f[selected], rows.y[selected], rows.classes, w)
    variances = np.zeros(len(names))
    for group, scale in zip(groups, scales, strict=False):
        variances += np.nanvar(_resampled(sample, group, names, generator), axis=1, ddof=1) / scale
    return dict(zip(names, np.sqrt(variances).tolist(), strict=True))


def _consecutive(samples: list[NDArray[np.intp]]) -> list[NDArray[np.intp]]:
    """Return the positions of each sample in the concatenation of all samples."""
    ends = np.cumsum([0, *map(len, samples)])
    return [np.arange(start, stop) for start, stop in pairwise(ends)]


def _resampled(sample: ScoredRows, group: NDArray[np.intp], names: list[str], generator: np.random.Generator) -> Floats:
    """Return metrics (names, samples) of bootstrap samples in which only the rows at positions `group` are resampled.

    A row that was drawn several times gets a larger weight. Scores are therefore sorted once for many samples.
    """
    values = []
    at_once = max(1, MAX_SAMPLE_WEIGHTS // len(sample.w))
    for start in range(0, BOOTSTRAP_SAMPLES, at_once):
        counts = np.ones((min(at_once, BOOTSTRAP_SAMPLES - start), len(sample.w)))
        for drawn in counts:
            drawn[group] = np.bincount(generator.integers(0, len(group), len(group)), minlength=len(group))
        rows = ScoredRows(sample.loss, sample.f, sample.y, sample.classes, sample.w * counts)
        values.append([RANKINGS[name](rows) for name in names])
    return np.concatenate(values, axis=1)
