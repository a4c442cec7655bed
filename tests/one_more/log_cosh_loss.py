"""Another loss: log cosh, square near zero and linear far out."""

from __future__ import annotations

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.models.loss import InvertedResidual, NumberLoss


class LogCoshLoss(NumberLoss):
    """log cosh(f - y); targets as of the square loss."""

    name = "log_cosh"
    bound = 1.0
    curvature = 1.0

    def value(self, f: Floats, y: Floats) -> Floats:
        """Return the loss of each row (n,)."""
        far = np.abs(f - y)[:, 0]
        value: Floats = far + np.log1p(np.exp(-2 * far)) - np.log(2)
        return value

    def residual(self, f: Floats, y: Floats) -> Floats:
        """Return its derivative with respect to f (n, 1)."""
        g: Floats = np.tanh(f - y)
        return g

    def invert_residual(self, g: Floats) -> InvertedResidual:
        """Return f - y, which an observer of g infers; the label alone stays unknown."""
        return InvertedResidual(np.full_like(g, np.nan), np.arctanh(np.clip(g, -1 + 1e-12, 1 - 1e-12)))
