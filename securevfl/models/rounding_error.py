"""How far coefficients lie from those of exact sums, where a training rounds the sums f at random.

A deviation s of f moves the gradient by sum_i x_i l''_i s e_i, where chance in the labels moves it by sum_i x_i g_i. In
standard errors a coefficient is so off by a normal number of deviation

    s (sum_i l''_i^2 / sum_i var g_i)^(1/2)

whatever the columns are, as long as they do not go with how much rows count. Var g_i is what the loss says of counts
(Poisson's, the negative binomial's), whose variance follows from their mean, and g_i^2 for amounts. Both are taken
where all f are equal. So counts of a large mean m, whose chance is small, are off by s m^(1/2), and rows of large
exposures likewise.

`python tests/models/test_right_numbers.py` prints the figure beside what was found.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.errors import DataNotice, LabelError
from securevfl.models.loss import Loss

NEAR = 0.5  # of f on either side: over which slopes are taken
SAID, MOST = 0.05, 1.0  # standard errors
DEVIATIONS = 2.0  # of a coefficient, so far off is called far


class SumRounding(NamedTuple):
    """How a training rounds sums f: the deviation that is left in what weights come of, and how to have less of it."""

    deviation: float
    remedy: str


def coefficient_error(loss: Loss, rated: Floats, start: float, mean: float | None, deviation: float) -> float:
    """Return by how many standard errors coefficients are off, two deviations.

    loss: of the job, weights and exposures included, with targets `rated` (n x k). start: f of no model. mean: of the
    labels, in units of which targets of counts are; None for amounts. deviation: of f by rounding.
    """
    f = np.full((len(rated), 1), start)
    slopes = (loss.residual(f + NEAR, rated) - loss.residual(f - NEAR, rated))[:, 0] / (2 * NEAR)
    chance = float((loss.residual(f, rated) ** 2).sum()) if mean is None else float(slopes.sum()) / mean
    return DEVIATIONS * deviation * float(np.sqrt((slopes**2).sum() / max(chance, np.finfo(float).tiny)))


def report_coefficient_error(who: str, apart: float, remedy: str) -> None:
    """Say in a DataNotice at party `who` that coefficients are so many standard errors off, if that is more than SAID.
    LabelError from MOST on."""
    if apart > MOST:
        raise LabelError(
            f"party {who}: coefficients within {MOST:g} standard error of those of exact sums were expected, they may "
            f"lie {apart:.2g} away, as sums are rounded at random and labels or exposures are large; {remedy}"
        )
    if apart > SAID:
        what = (
            f"sums are rounded at random, so coefficients may lie {apart:.2g} standard errors from those of exact ones"
        )
        warnings.warn(f"party {who}: {what}; {remedy}", DataNotice, stacklevel=3)
