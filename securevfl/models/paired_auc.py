"""Standard error of the difference of two AUCs on the same rows, if one model's scores are not linked to rows.

In a training on secret shares, the party with labels receives (score, label) pairs of the joint model in a secret
order. It also has a local model, which uses only its columns. It knows the scores of its local model row by row, but
not which pair of the joint model belongs to which row. The two AUCs are nevertheless strongly correlated, because both
models use the same rows. A test that ignores this mistakes real gains for chance.

Hanley and McNeil (1983) derive the correlation of two AUCs from the correlation of the scores within the classes. That
correlation can be computed without links: the local model is close to the projection of the joint model on the local
columns, so the correlation is the ratio of the standard deviations of their scores. If the two models are of different
kinds, it is multiplied by the correlation of two local models of these kinds, whose scores are linked to rows. The
correlation of the AUCs follows from that of the scores (`auc_correlation`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.models.standard_errors import auc_influence

CRITICAL_VALUE = 1.645
"""A gain of more standard errors than this is not chance: the one-sided 5 % point of the normal distribution."""
SIMULATED_ROWS = 4096
"""Number of rows of each class in the simulation of `auc_correlation`."""
MIN_CORRELATED_PROBABILITY = 1e-6
MAX_CORRELATION = 0.999


def difference_error(first: float, second: float, correlation: float) -> float:
    """Return the standard error of a difference of two correlated numbers with these standard errors."""
    return math.sqrt(max(0.0, first**2 + second**2 - 2 * correlation * first * second))


def auc_correlation(first: float, second: float, correlation: float) -> float:
    """Return the correlation of two AUCs over samples of rows.

    Args:
        first: the first AUC.
        second: the second AUC.
        correlation: the correlation of the scores within a class.

    Returns:
        The correlation, for scores that are normally distributed within each class and have these AUCs.
    """
    generator = np.random.default_rng(0)
    positive = np.arange(2 * SIMULATED_ROWS) < SIMULATED_ROWS
    noise = generator.normal(size=(2, 2 * SIMULATED_ROWS))
    noise[1] = correlation * noise[0] + math.sqrt(1 - correlation**2) * noise[1]
    normal, influences = NormalDist(), []
    for area, scores in zip((first, second), noise, strict=True):
        shift = math.sqrt(2) * normal.inv_cdf(min(max(area, 1e-3), 1 - 1e-3))
        influences.append(auc_influence(positive, scores + shift * positive, np.ones(len(positive))))
    one, other = influences
    return float((one * other).sum() / math.sqrt((one**2).sum() * (other**2).sum()))


def spread_within_classes(points: Sequence[Sequence[float]]) -> float:
    """Return the standard deviation of log odds within the classes, from the points of a reliability curve.

    Args:
        points: mean probability, mean label and number of rows of each bin (`securevfl.models.metrics.calibration`).

    Returns:
        The root of the mean variance of the two classes.
    """
    probability, label, rows = np.asarray(points, np.float64).T
    clipped = np.clip(probability, MIN_CORRELATED_PROBABILITY, 1 - MIN_CORRELATED_PROBABILITY)
    f = np.log(clipped) - np.log1p(-clipped)
    variances = []
    for weights in (rows * label, rows * (1 - label)):
        if weights.sum() > 0:
            mean = np.average(f, weights=weights)
            variances.append(float(np.average((f - mean) ** 2, weights=weights)))
    return math.sqrt(float(np.mean(variances))) if variances else 0.0


def correlation_within_classes(first: Floats, second: Floats, positive: NDArray[np.bool_]) -> float:
    """Return the mean correlation of two scores (n,) within the classes; 1 for scores that do not vary."""
    values = []
    for members in (positive, ~positive):
        a, b = first[members], second[members]
        if len(a) > 1 and a.std() > 0 and b.std() > 0:
            values.append(float(np.corrcoef(a, b)[0, 1]))
    return float(np.mean(values)) if values else 1.0


def score_correlation(local_spread: float, joint_spread: float) -> float:
    """Return the correlation of local and joint scores within the classes, from their standard deviations."""
    return min(MAX_CORRELATION, local_spread / joint_spread) if joint_spread > 0 else MAX_CORRELATION
