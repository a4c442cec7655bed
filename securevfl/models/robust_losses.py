"""Regression losses with a bounded residual: Huber's loss and the quantile loss.

Both match scikit-learn and statsmodels, except that the corner of the quantile loss is rounded so that g has a slope:
each label counts as spread evenly over BANDWIDTH deviations on either side (convolution smoothing; Fernandes, Guerre
and Horta 2021).
"""

from __future__ import annotations

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.models.loss import (
    InvertedResidual,
    NumberLoss,
)

BANDWIDTH = 0.0625  # h, in deviations of the labels


class HuberLoss(NumberLoss):
    """Huber's loss (1964): (f - y)^2 / 2 up to `width` deviations, width (|f - y| - width / 2) beyond."""

    name = "huber"
    curvature = 1.0

    def __init__(self, width: float = 1.0) -> None:
        self.width = width
        self.bound = width  # type: ignore[misc]  # of this one

    def value(self, f: Floats, y: Floats) -> Floats:
        """Return the loss of each row (n,)."""
        distance = np.abs(f - y)[:, 0]
        return np.where(distance <= self.width, distance**2 / 2, self.width * (distance - self.width / 2))

    def residual(self, f: Floats, y: Floats) -> Floats:
        """Return the residual g (n, c)."""
        return np.clip(f - y, -self.width, self.width)

    def invert_residual(self, g: Floats) -> InvertedResidual:
        """Compute f - y where g is not at its bound."""
        return InvertedResidual(np.full_like(g, np.nan), np.where(np.abs(g) < self.width, g, np.nan))


class QuantileLoss(NumberLoss):
    """The quantile loss (Koenker and Bassett 1978): q (y - f) below the label and (1 - q)(f - y) above it.

    It is rounded within BANDWIDTH of the label, so that
    g = (f - y + h) / 2h - q, clipped to [-q, 1 - q].
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
        """Compute f - y near the label; elsewhere g reveals only on which side of the label f is."""
        error = 2 * BANDWIDTH * (g + self.quantile) - BANDWIDTH
        is_near = (g > -self.quantile) & (g < 1 - self.quantile)
        return InvertedResidual(np.full_like(g, np.nan), np.where(is_near, error, np.nan))
