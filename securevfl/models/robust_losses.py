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
    """(f - y)^2 / 2 up to `width` deviations, width (|f - y| - width / 2) beyond (Huber 1964)."""

    name = "huber"
    curvature = 1.0

    def __init__(self, width: float = 1.0) -> None:
        self.width = width
        self.bound = width  # type: ignore[misc]  # of this one

    def value(self, f: Floats, y: Floats) -> Floats:
        far = np.abs(f - y)[:, 0]
        return np.where(far <= self.width, far**2 / 2, self.width * (far - self.width / 2))

    def residual(self, f: Floats, y: Floats) -> Floats:
        return np.clip(f - y, -self.width, self.width)

    def invert_residual(self, g: Floats) -> InvertedResidual:
        """f - y where it is not at its bound."""
        return InvertedResidual(np.full_like(g, np.nan), np.where(np.abs(g) < self.width, g, np.nan))


class QuantileLoss(NumberLoss):
    """q (y - f) below the label and (1 - q)(f - y) above it, rounded within BANDWIDTH of it (Koenker and Bassett 1978).

    g = (f - y + h) / 2h - q, clipped to [-q, 1 - q].
    """

    name = "quantile"
    curvature = 0.5 / BANDWIDTH
    spacing = 2 * BANDWIDTH

    def __init__(self, quantile: float = 0.5) -> None:
        self.quantile = quantile

    def value(self, f: Floats, y: Floats) -> Floats:
        over, q, h = (f - y)[:, 0], self.quantile, BANDWIDTH
        return np.where(np.abs(over) <= h, (over + h) ** 2 / (4 * h) - q * over, np.maximum(-q * over, (1 - q) * over))

    def residual(self, f: Floats, y: Floats) -> Floats:
        return np.clip((f - y + BANDWIDTH) / (2 * BANDWIDTH), 0, 1) - self.quantile

    def invert_residual(self, g: Floats) -> InvertedResidual:
        """f - y near the label, and elsewhere nothing but on which side f is."""
        over, near = 2 * BANDWIDTH * (g + self.quantile) - BANDWIDTH, (g > -self.quantile) & (g < 1 - self.quantile)
        return InvertedResidual(np.full_like(g, np.nan), np.where(near, over, np.nan))
