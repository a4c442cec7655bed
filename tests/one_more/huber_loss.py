"""Another loss: Huber's, square near zero and linear far out (Huber 1964)."""

from __future__ import annotations

import numpy as np

from securevfl.crypto.scheme import Floats
from securevfl.models.losses import SquareLoss

WIDTH = 1.0


class HuberLoss(SquareLoss):
    """(f - y)^2 / 2 up to WIDTH, WIDTH (|f - y| - WIDTH / 2) beyond; targets as of the square loss."""

    name = "huber"
    bound = WIDTH
    curvature = 1.0

    def value(self, f: Floats, y: Floats) -> Floats:
        far = np.abs(f - y)[:, 0]
        value: Floats = np.where(far <= WIDTH, far**2 / 2, WIDTH * (far - WIDTH / 2))
        return value

    def residual(self, f: Floats, y: Floats) -> Floats:
        g: Floats = np.clip(f - y, -WIDTH, WIDTH)
        return g
