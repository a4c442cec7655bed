"""A party's own block solved to the end while all others stay: preconditioned conjugate gradients.

Nonlinear conjugate gradients (Polak and Ribiere 1969, restarted where beta would be negative) on the convex objective

    phi(theta) = mean loss(X theta + others) + l2 / 2 |theta|^2,     preconditioned by P of
    `securevfl.optim.curvature`

f moves along a line when theta does, so a step takes two passes over X, and its length none: it is where the slope of
phi along the line, which rises, is nearly 0, found by secants and, once it lies between two of them, by false
position with the Illinois rule (Dowell and Jarratt 1971). The loss's bound on the curvature says how far is not yet
too far: there the search starts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.models.linear_block import Linear
from securevfl.models.loss import Loss
from securevfl.optim.curvature import bound

STEPS = 50  # at most

TRIES = 20  # of lengths at most, a step

MOST = 9.0  # times as far as before, and no more, is tried next

NEAR = 1e-3  # of the first slope: where a step's length is good enough


def solve(model: Linear, loss: Loss, X: Floats, y: Floats, others: Floats, P: Floats, *, within: float) -> Floats:
    """Move the model to the minimum of its block and return f (n x c) there.

    X (n x d): the party's columns. y (n x c): targets. others (n x c): what all others add to f. P (d x d): its
    preconditioner. It is over when a step of P times the gradient would lower phi by at most `within`, or after STEPS
    steps.
    """
    n = len(X)
    f = model.forward(X) + others
    downhill = last = np.zeros_like(model.theta)
    former = 1.0
    for _ in range(STEPS):
        gradient = model.regularised(model.vjp(X, loss.residual(f, y)) / n)
        step = P @ gradient
        decrease = _dot(gradient, step)
        if decrease <= 2 * within:
            break
        downhill = max(0.0, _dot(gradient - last, step) / former) * downhill - step
        if _dot(gradient, downhill) >= 0:
            downhill = -step
        along = SearchLine(loss, y, f, model.forward(X, downhill), model.theta, downhill, model.decay)
        t = along.lowest(_dot(gradient, downhill))
        model.theta = model.theta + t * downhill
        f = f + t * along.moved
        last, former = gradient, decrease
    return f


@dataclass(frozen=True)
class SearchLine:
    """phi from theta on along `downhill`, by which f `moved` (n x c); decay (d x 1) are the weights of L2."""

    loss: Loss
    y: Floats
    f: Floats
    moved: Floats
    theta: Floats
    downhill: Floats
    decay: Floats

    def lowest(self, slope: float) -> float:
        """How far to go, from the slope at 0, which is negative: to where it is nearly 0."""
        n = len(self.f)
        start, bend = _dot(self.decay * self.downhill, self.theta), _dot(self.decay * self.downhill, self.downhill)

        def at(t: float) -> float:
            return _dot(self.loss.residual(self.f + t * self.moved, self.y), self.moved) / n + start + t * bend

        low, below, high, above = 0.0, slope, np.inf, np.inf
        t = -slope / (bound(self.loss) * _dot(self.moved, self.moved) / n + bend)
        for _ in range(TRIES):
            now = at(t)
            if abs(now) <= -NEAR * slope:
                break
            if now > 0:
                high, above, below = t, now, below / 2  # Illinois: the other end may not stay for ever
            elif np.isfinite(high):
                low, below, above = t, now, above / 2
            else:
                ahead = -now * (t - low) / max(now - below, 1e-300)  # where the secant meets 0
                low, below = t, now
                t += min(ahead, MOST * t)
                continue
            t = low - below * (high - low) / (above - below)
        return t


def _dot(one: Floats, other: Floats) -> float:
    return float(np.vdot(one, other))
