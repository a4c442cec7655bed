"""A party's own block solved to the end while all others stay: preconditioned conjugate gradients.

Nonlinear conjugate gradients (Polak and Ribiere 1969, restarted where beta would be negative) on the convex objective

    phi(theta) = mean loss(X theta + others) + l2 / 2 |theta|^2,     preconditioned by P of `securevfl.optim.curvature`

f moves along a line when theta does, so a step takes two passes over X, and its length, found by the secant method on
the slope of phi, none. The loss's bound on the curvature says how far is not yet too far: there the secant starts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from securevfl.crypto.scheme import Floats
from securevfl.models.linear import Linear

STEPS = 50  # at most
SECANTS = 8  # at most, a step
NEAR = 1e-3  # of the first slope: where a step's length is good enough

Residual = Callable[[Floats], Floats]  # g (n x c) of f (n x c)


def solve(
    model: Linear, X: Floats, others: Floats, residual: Residual, P: Floats, *, curvature: float, within: float
) -> Floats:
    """Moves the model to the minimum of its block and returns f (n x c) there.

    X (n x d): the party's columns. others (n x c): what all others add to f. P (d x d) and `curvature`, the loss's
    bound. It is over when a step of P times the gradient would lower phi by at most `within`, or after STEPS steps.
    """
    n = len(X)
    f = model.forward(X) + others
    downhill = last = np.zeros_like(model.theta)
    former = 1.0
    for _ in range(STEPS):
        gradient = model.regularised(model.vjp(X, residual(f)) / n)
        step = P @ gradient
        decrease = _dot(gradient, step)
        if decrease <= 2 * within:
            break
        downhill = max(0.0, _dot(gradient - last, step) / former) * downhill - step
        if _dot(gradient, downhill) >= 0:
            downhill = -step
        along = Line(f, model.forward(X, downhill), residual, curvature, model.theta, downhill, model.decay)
        t = along.lowest(_dot(gradient, downhill))
        model.theta = model.theta + t * downhill
        f = f + t * along.moved
        last, former = gradient, decrease
    return f


@dataclass(frozen=True)
class Line:
    """phi from theta on along `downhill`, by which f `moved` (n x c); decay (d x 1) are the weights of L2."""

    f: Floats
    moved: Floats
    residual: Residual
    curvature: float
    theta: Floats
    downhill: Floats
    decay: Floats

    def lowest(self, slope: float) -> float:
        """How far to go, from the slope at 0, which is negative: to where it is nearly 0."""
        n = len(self.f)
        start, bend = _dot(self.decay * self.downhill, self.theta), _dot(self.decay * self.downhill, self.downhill)

        def at(t: float) -> float:
            return _dot(self.residual(self.f + t * self.moved), self.moved) / n + start + t * bend

        before, then = 0.0, slope
        t = -slope / (self.curvature * _dot(self.moved, self.moved) / n + bend)
        for _ in range(SECANTS):
            now = at(t)
            if abs(now) <= -NEAR * slope or now == then:
                break
            t, before, then = t - now * (t - before) / (now - then), t, now
        return t


def _dot(one: Floats, other: Floats) -> float:
    return float(np.vdot(one, other))
