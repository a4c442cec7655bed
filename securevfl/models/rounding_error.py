"""Error of coefficients if a training rounds the model outputs f at random.

Let s be the standard deviation of the rounding error of f, x_i the value of a column in row i, g_i and l''_i the first
and second derivative of the row's loss by f. Rounding changes the gradient by a sum of x_i * l''_i * s * e_i with
standard normal e_i; the randomness of the labels changes it by the sum of x_i * g_i. In units of its standard error, a
coefficient therefore has a normal error with the standard deviation

    s * (sum_i l''_i^2 / sum_i var g_i)^(1/2)

for any column that is not correlated with l''. The variance of g_i follows from the mean for counts (Poisson, negative
binomial), and is estimated by g_i^2 for amounts. Both are evaluated at equal f for all rows.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.errors import DataNotice, LabelError
from securevfl.models.loss import Loss

SLOPE_STEP = 0.5
"""Slopes l'' are computed as differences over this distance of f on either side."""
REPORTED_ERROR, MAX_ERROR = 0.05, 1.0
"""Errors, in units of standard errors, above which a notice is given and above which training is refused."""
DEVIATIONS = 2.0
"""Number of standard deviations of a coefficient's error that are reported."""


class SumRounding(NamedTuple):
    """The rounding of sums f in a training.

    Attributes:
        deviation: standard deviation of the rounding error of f, as far as it affects the weights.
        remedy: how a user can reduce it.
    """

    deviation: float
    remedy: str


def coefficient_error(loss: Loss, rated: Floats, start: float, mean: float | None, deviation: float) -> float:
    """Return the error of coefficients (two standard deviations) in units of their standard errors.

    Args:
        loss: the loss of the job, with weights and exposures.
        rated: the targets (n, 1 to 3) for this loss: the last columns are offsets and weights, if the loss has them.
        start: the output f that is equal for all rows, at which the error is evaluated.
        mean: the mean label of counts, by which targets are divided; None for amounts.
        deviation: standard deviation of the rounding error of f.

    Returns:
        The error.
    """
    f = np.full((len(rated), 1), start)
    difference = loss.residual(f + SLOPE_STEP, rated) - loss.residual(f - SLOPE_STEP, rated)
    slopes = difference[:, 0] / (2 * SLOPE_STEP)
    variance = float((loss.residual(f, rated) ** 2).sum()) if mean is None else float(slopes.sum()) / mean
    return DEVIATIONS * deviation * float(np.sqrt((slopes**2).sum() / max(variance, np.finfo(float).tiny)))


def report_coefficient_error(name: str, error: float, remedy: str) -> None:
    """Warn if the error of coefficients exceeds REPORTED_ERROR.

    Args:
        name: name of the party.
        error: the error in units of standard errors.
        remedy: how a user can reduce it.

    Raises:
        LabelError: if the error exceeds MAX_ERROR.
    """
    if error > MAX_ERROR:
        raise LabelError(
            f"party {name}: sums are rounded at random and labels or exposures are large, so coefficients may be off "
            f"by {error:.2g} standard errors; at most {MAX_ERROR:g} is allowed",
            remedy,
            code="SVFL-LABEL-RANGE",
            party=name,
        )
    if error > REPORTED_ERROR:
        warnings.warn(
            f"party {name}: sums are rounded at random, so coefficients may be off by {error:.2g} standard errors; "
            f"{remedy}",
            DataNotice,
            stacklevel=3,
        )
