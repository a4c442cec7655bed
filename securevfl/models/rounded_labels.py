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
        errors: their standard errors. They contain the rounding of labels, and the choice of the rows.
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
    inner = np.unique(np.quantile(y, np.linspace(0.02, 0.998, _CANDIDATES), method="nearest"))
    inner = inner[(inner > low) & (inner < high)]
    choices = [np.array([low, high])]
    if codes > 2:
        choices += [np.array([low, a, high]) for a in inner]
        choices += [np.array([low, a, b, high]) for i, a in enumerate(inner) for b in inner[i + 1 :]]
    usable = [(_added_variance(y, knots), number) for number, knots in enumerate(choices) if _is_frequent(y, knots)]
    return choices[min(usable)[1]] if usable else None


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
    # a rank by rounded scores has a smaller covariance with anything that depends on the score: exact for normal scores
    spread = math.sqrt(variance / max(variance - noise, variance / 4)) if variance else 1.0
    below, best = _ranks(f), _covariance(_ranks(y), y)
    influence = rounded * (below - 0.5) + _weight_above(f, rounded)
    values = {"gini": spread * _covariance(below, rounded) / best}
    errors = {"gini": spread * float(influence.std()) / math.sqrt(n) / abs(best)}
    mean, mean_square = float(predicted.mean()), float((predicted**2).mean())
    mean, mean_square = mean / (1 + noise / 2), mean_square / (1 + 2 * noise)  # exp of a randomly rounded score
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


def _is_frequent(y: Floats, knots: Floats) -> bool:
    """Return whether each code is expected to have enough rows."""
    lower, share = _between(y, knots)
    counts = np.bincount(lower, 1 - share, len(knots)) + np.bincount(lower + 1, share, len(knots))
    return bool(counts.min() >= MIN_CODE_ROWS)


def _added_variance(y: Floats, knots: Floats) -> float:
    """Return the mean variance that rounding adds to a label."""
    lower, _ = _between(y, knots)
    return float(((y - knots[lower]) * (knots[lower + 1] - y)).mean())


def _ranks(values: Floats) -> Floats:
    """Return the share (n,) of rows with a smaller value, and half of those with the same."""
    _, level, counts = np.unique(values, return_inverse=True, return_counts=True)
    shares: Floats = (np.cumsum(counts) - counts / 2)[level] / len(values)
    return shares


def _weight_above(f: Floats, rounded: Floats) -> Floats:
    """Return for each row (n,) the mean over all rows of the labels with a larger score, and half of equal ones."""
    _, level = np.unique(f, return_inverse=True)
    totals = np.bincount(level, rounded)
    weights: Floats = (totals.sum() - np.cumsum(totals) + totals / 2)[level] / len(f)
    return weights


def _covariance(a: Floats, b: Floats) -> float:
    return float(((a - a.mean()) * b).mean())
