"""Regression losses with a bounded residual: Huber's loss and the quantile loss.

f is the prediction, y the label and g the residual, the derivative of the loss by f. Both losses match scikit-learn and
statsmodels, except that the corner of the quantile loss is rounded so that g is continuous: the loss is averaged over
labels within BANDWIDTH standard deviations on either side (convolution smoothing; Fernandes, Guerre and Horta 2021).
"""

from __future__ import annotations

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.models.loss import (
    InvertedResidual,
    NumberLoss,
)

BANDWIDTH = 0.0625  # half the width of the rounded corner, in standard deviations of the labels


class HuberLoss(NumberLoss):
    """Huber's loss (1964) of e = |f - y|, in standard deviations of the labels.

    It is e^2 / 2 if e is at most `width`, and width * (e - width / 2) otherwise.
    """

    name = "huber"
    curvature = 1.0

    def __init__(self, width: float = 1.0) -> None:
        self.width = width
        self.bound = width  # type: ignore[misc]  # per object

    def value(self, f: Floats, y: Floats) -> Floats:
        """Return the loss of each row (n,)."""
        distance = np.abs(f - y)[:, 0]
        return np.where(distance <= self.width, distance**2 / 2, self.width * (distance - self.width / 2))

    def residual(self, f: Floats, y: Floats) -> Floats:
        """Return the residual g (n, c)."""
        return np.clip(f - y, -self.width, self.width)

    def invert_residual(self, g: Floats) -> InvertedResidual:
        """Return f - y, which is g, for rows whose residual g is not at its bound, and NaN for all others."""
        return InvertedResidual(np.full_like(g, np.nan), np.where(np.abs(g) < self.width, g, np.nan))


class QuantileLoss(NumberLoss):
    """The quantile loss (Koenker and Bassett 1978): q * (y - f) if f < y, (1 - q) * (f - y) otherwise.

    q is the quantile. The corner is rounded for f within h = BANDWIDTH of y, so that g = (f - y + h) / (2 * h) - q,
    clipped to [-q, 1 - q].
    """

    name = "quantile"
    curvature = 0.5 / BANDWIDTH
    spacing = 2 * BANDWIDTH

    def __init__(self, quantile: float = 0.5) -> None:
        self.quantile = quantile

    def value(self, f: Floats, y: Floats) -> Floats:
        """Return the loss of each row (n,)."""
        error, q, h = (f - y)[:, 0], self.quantile, BANDWIDTH
        corner = (error + h) ** 2 / (4 * h) - q * error
        return np.where(np.abs(error) <= h, corner, np.maximum(-q * error, (1 - q) * error))

    def residual(self, f: Floats, y: Floats) -> Floats:
        """Return the residual g (n, c)."""
        return np.clip((f - y + BANDWIDTH) / (2 * BANDWIDTH), 0, 1) - self.quantile

    def constant_outputs(self, y: Floats, weights: Floats | None = None) -> Floats:
        """Return the quantile (c,) of the targets, without regard to weights."""
        return np.asarray(np.quantile(y, self.quantile, axis=0))

    def invert_residual(self, g: Floats) -> InvertedResidual:
        """Return f - y for f near the label; for all other rows g reveals only which of the two is larger."""
        error = 2 * BANDWIDTH * (g + self.quantile) - BANDWIDTH
        is_near = (g > -self.quantile) & (g < 1 - self.quantile)
        return InvertedResidual(np.full_like(g, np.nan), np.where(is_near, error, np.nan))
