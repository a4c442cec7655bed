"""Minimise the objective over one party's block of weights, with all other weights fixed.

The method is nonlinear preconditioned conjugate gradients (Polak and Ribiere 1969, restarted if beta would be negative)
on the convex objective

    phi(theta) = mean loss(X theta + others) + l2 / 2 * |theta|^2,     preconditioned by P of
                                                                      `securevfl.optim.curvature`

X (n, d) are the party's columns and `others` (n, c) the sum of the other parties' outputs. While theta moves along a
line, f = X theta + others does too. A step therefore multiplies with X only twice, and the search for its length never
does. A length is accepted if the slope of phi along the line is nearly 0 there. It is found by secants and, once it is
bracketed, by false position with the Illinois rule (Dowell and Jarratt 1971). The search starts at a length that the
curvature bound of the loss guarantees not to be too long.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.models.linear_block import Linear
from securevfl.models.loss import Loss
from securevfl.optim.curvature import curvature_bound

MAX_STEPS = 50
MAX_LENGTHS = 20  # maximum number of lengths that the search tries in one step
MAX_GROWTH = 9.0  # maximum factor between one tried length and the next
SLOPE_TOLERANCE = 1e-3  # a length is accepted if the slope there is at most this share of the first slope


def solve(model: Linear, loss: Loss, X: Floats, y: Floats, others: Floats, P: Floats, *, within: float) -> Floats:
    """Set the model's weights to the minimum of its block.

    Args:
        model: the party's model.
        loss: the loss function that the training minimises (`securevfl.models.loss`).
        X: the party's columns (n, d).
        y: targets, the labels in the encoding of the loss (n, c).
        others: the sum of all other parties' outputs (n, c).
        P: the preconditioner (d, d), by which gradients are multiplied.
        within: precision: stop when the next step is predicted to reduce phi by at most this value, or after MAX_STEPS
            steps.

    Returns:
        f (n, c) at the minimum.
    """
    n = len(X)
    f = model.forward(X) + others
    direction = previous_gradient = np.zeros_like(model.theta)
    previous_decrease = 1.0
    for _ in range(MAX_STEPS):
        gradient = model.regularised(model.vjp(X, loss.residual(f, y)) / n)
        step = P @ gradient
        decrease = _dot(gradient, step)
        if decrease <= 2 * within:
            break
        direction = max(0.0, _dot(gradient - previous_gradient, step) / previous_decrease) * direction - step
        if _dot(gradient, direction) >= 0:
            direction = -step
        line = SearchLine(loss, y, f, model.forward(X, direction), model.theta, direction, model.decay)
        t = line.minimum(_dot(gradient, direction))
        model.theta = model.theta + t * direction
        f = f + t * line.output_change
        previous_gradient, previous_decrease = gradient, decrease
    return f


@dataclass(frozen=True)
class SearchLine:
    """The objective phi along a line from theta.

    Attributes:
        loss: the loss function that the training minimises (`securevfl.models.loss`).
        y: targets, the labels in the encoding of the loss (n, c).
        f: outputs at theta (n, c).
        output_change: change of f per unit length (n, c).
        theta: the weights at the start of the line (d, c).
        direction: change of the weights per unit length.
        decay: the l2 penalty of each weight (d, 1).
    """

    loss: Loss
    y: Floats
    f: Floats
    output_change: Floats
    theta: Floats
    direction: Floats
    decay: Floats

    def minimum(self, slope: float) -> float:
        """Return the length at which the slope is nearly 0, given the negative slope at length 0."""
        n = len(self.f)
        penalty_slope = _dot(self.decay * self.direction, self.theta)
        penalty_curvature = _dot(self.decay * self.direction, self.direction)

        def slope_at(t: float) -> float:
            residual = self.loss.residual(self.f + t * self.output_change, self.y)
            return _dot(residual, self.output_change) / n + penalty_slope + t * penalty_curvature

        low, low_slope, high, high_slope = 0.0, slope, np.inf, np.inf
        t = -slope / (curvature_bound(self.loss) * _dot(self.output_change, self.output_change) / n + penalty_curvature)
        for _ in range(MAX_LENGTHS):
            slope_t = slope_at(t)
            if abs(slope_t) <= -SLOPE_TOLERANCE * slope:
                break
            if slope_t > 0:
                high, high_slope, low_slope = t, slope_t, low_slope / 2  # Illinois rule: halve, so that both ends move
            elif np.isfinite(high):
                low, low_slope, high_slope = t, slope_t, high_slope / 2
            else:
                increase = -slope_t * (t - low) / max(slope_t - low_slope, 1e-300)  # distance to the zero of the secant
                low, low_slope = t, slope_t
                t += min(increase, MAX_GROWTH * t)
                continue
            t = low - low_slope * (high - low) / (high_slope - low_slope)
        return t


def _dot(a: Floats, b: Floats) -> float:
    return float(np.vdot(a, b))
