"""Metrics of counts and amounts from pairs of a rounded score and a rounded label, in random order.

A label y is replaced by a code of few bits. Each code stands for a value, its knot. y is rounded up or down at random
to one of the two knots around it, in proportion to the distance, so that the expected value of the rounded label is y.
Means that are linear in the label are then unbiased: the covariance of labels and ranks (the Gini index), that of
labels and predictions (R2, RMSE), and the mean label of rows with similar predictions (calibration). Bins of labels
would not do. Rows of one bin differ in their labels, and those with larger labels have larger predictions: with 16 bins
of equal size, the Gini index of gamma amounts is 0.03 too small, which is several standard errors.

The party with labels knows all labels, and not to which pair they belong. So the mean label, its variance and the
largest possible covariance with a rank are exact.

The score f is rounded up or down at random, too, to multiples of a spacing s. That adds s^2 / 6 to its variance.
"""

from __future__ import annotations

import math
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.models.metrics import calibration

Codes = NDArray[np.uint8]
MIN_CODE_ROWS = 130
"""Expected number of rows with each code; the party with labels could recognise the rows of a rare code."""
MAX_ROUNDED_ERROR = 0.1
"""Largest standard error of a Gini index or R2, and largest standard deviation of the mean rounded label of a tenth of
the rows, as a share of the mean label. Less precise metrics are left out."""
MIN_ROUNDED_ROWS = 2000
"""With fewer rows, rounding of labels leaves too little of a metric to be worth the pairs that it would disclose."""
_CANDIDATES = 48
"""Number of quantiles of the labels among which the inner knots are chosen."""


class RankedMetrics(NamedTuple):
    """Metrics from rounded pairs.

    Attributes:
        values: Gini index, R2 and RMSE, without those whose error exceeds `MAX_ROUNDED_ERROR` (RMSE goes with R2).
        errors: their standard errors, due to the sampling of rows and to the rounding of labels.
        curve: mean prediction, mean label and number of rows, for ten groups of rows by rising prediction. It is empty
            if the rounding of labels changes the mean label of a group by more than `MAX_ROUNDED_ERROR`.
    """

    values: dict[str, float]
    errors: dict[str, float]
    curve: list[list[float]]


def choose_knots(y: Floats, codes: int) -> Floats | None:
    """Choose the values of the codes so that rounding adds as little variance as possible.

    Args:
        y: the labels (n,).
        codes: the number of codes, 2 or 4.

    Returns:
        The knots in rising order, `codes` or fewer, from the smallest to the largest label; None if not even two codes
        would have `MIN_CODE_ROWS` rows each.
    """
    low, high = float(y.min()), float(y.max())
    if low == high:
        return None
    inner = np.unique(np.quantile(y, np.linspace(0.02, 0.998, _CANDIDATES), method="nearest"))
    knots = np.array([low, *inner[(inner > low) & (inner < high)], high])
    added, rounded_up, rows = _sums_between(y, knots)
    last, usable = len(knots) - 1, list[tuple[float, tuple[int, ...]]]()
    for count in range(min(codes, len(knots)) - 1):  # the number of inner knots
        for chosen in combinations(range(1, last), count):
            positions = (0, *chosen, last)
            intervals = list(pairwise(positions))
            up = [rounded_up[interval] for interval in intervals]
            down = [rows[interval] - rounded_up[interval] for interval in intervals]
            expected = [d + u for d, u in zip([*down, 0.0], [0.0, *up], strict=True)]
            if min(expected) >= MIN_CODE_ROWS:
                usable.append((sum(added[interval] for interval in intervals), positions))
    return knots[list(min(usable)[1])] if usable else None


def round_labels(y: Floats, knots: Floats, uniform: Floats) -> Codes:
    """Round labels up or down at random.

    Args:
        y: the labels (n,).
        knots: the values of the codes, in rising order.
        uniform: random numbers (n,), uniform in [0, 1), that no other party knows.

    Returns:
        The codes (n,): the position of each rounded label among the knots.
    """
    lower, share = _between(y, knots)
    return (lower + (uniform < share)).astype(np.uint8)


def ranked_metrics(f: Floats, predicted: Floats, rounded: Floats, y: Floats, spacing: float) -> RankedMetrics:
    """Compute the metrics.

    Args:
        f: the rounded scores (n,) of the pairs.
        predicted: the predictions (n,) of the pairs, exp(f) times the mean label.
        rounded: the rounded labels (n,) of the pairs, the knots of their codes.
        y: the labels (n,) in another order.
        spacing: the spacing s of the scores.

    Returns:
        The metrics.
    """
    n, noise = len(f), spacing**2 / 6
    variance = float(f.var())
    # rounding scores lowers the covariance of their ranks with labels; this factor corrects it, exactly if f is normal
    spread = math.sqrt(variance / max(variance - noise, variance / 4)) if variance else 1.0
    below, best = _ranks(f), _covariance(_ranks(y), y)
    influence = rounded * (below - 0.5) + _weight_above(f, rounded)
    values = {"gini": spread * _covariance(below, rounded) / best}
    errors = {"gini": spread * float(influence.std()) / math.sqrt(n) / abs(best)}
    mean, mean_square = float(predicted.mean()), float((predicted**2).mean())
    mean, mean_square = mean / (1 + noise / 2), mean_square / (1 + 2 * noise)  # the rounding of f raised both
    product = _covariance(predicted, rounded) / (1 + noise / 2) + mean * float(y.mean())
    square = max(0.0, float((y**2).mean()) - 2 * product + mean_square)
    error = float(((rounded - predicted) ** 2).std()) / math.sqrt(n)
    values |= {"r2": 1 - square / float(y.var()), "rmse": math.sqrt(square)}
    errors |= {"r2": error / float(y.var()), "rmse": error / (2 * math.sqrt(square)) if square else math.nan}
    group_error = math.sqrt(10 * max(0.0, float(rounded.var() - y.var())) / n)
    curve = calibration(rounded, predicted).tolist() if group_error <= MAX_ROUNDED_ERROR * y.mean() else []
    precise = [name for name in values if errors["gini" if name == "gini" else "r2"] <= MAX_ROUNDED_ERROR]
    return RankedMetrics({name: values[name] for name in precise}, {name: errors[name] for name in precise}, curve)


def _between(y: Floats, knots: Floats) -> tuple[NDArray[np.intp], Floats]:
    """Return the position (n,) of the knot below each label, and the share (n,) of the way to the next knot."""
    lower = np.clip(np.searchsorted(knots, y, side="right") - 1, 0, len(knots) - 2)
    return lower, (y - knots[lower]) / (knots[lower + 1] - knots[lower])


def _sums_between(y: Floats, knots: Floats) -> tuple[Floats, Floats, Floats]:
    """Compute sums over the labels between each two of k knots, as if these were neighbours.

    Args:
        y: the labels (n,).
        knots: the knots (k,) in rising order, from the smallest to the largest label.

    Returns:
        Three arrays (k, k), whose entries [i, j] with i < j are about labels from knot i to below knot j (the largest
        labels are below the last knot, too): the sum of the variances that rounding adds, the expected number of labels
        that are rounded up, and the number of labels.
    """
    ordered = np.sort(y)
    ends = np.searchsorted(ordered, knots)
    ends[-1] = len(y)
    powers = [np.concatenate([[0.0], np.cumsum(values)])[ends] for values in (np.ones(len(y)), ordered, ordered**2)]
    rows, first, second = (sums[None, :] - sums[:, None] for sums in powers)
    low, high = knots[:, None], knots[None, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        return (low + high) * first - second - low * high * rows, (first - low * rows) / (high - low), rows


def _ranks(values: Floats) -> Floats:
    """Return for each row (n,) the share of rows with a smaller value plus half the share with the same value."""
    _, level, counts = np.unique(values, return_inverse=True, return_counts=True)
    shares: Floats = (np.cumsum(counts) - counts / 2)[level] / len(values)
    return shares


def _weight_above(f: Floats, rounded: Floats) -> Floats:
    """Return for each row (n,) the sum of labels of rows with a larger score, over n; rows that tie count half."""
    _, level = np.unique(f, return_inverse=True)
    totals = np.bincount(level, rounded)
    weights: Floats = (totals.sum() - np.cumsum(totals) + totals / 2)[level] / len(f)
    return weights


def _covariance(a: Floats, b: Floats) -> float:
    return float(((a - a.mean()) * b).mean())
