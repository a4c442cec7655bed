"""A party's block of a linear model: H_k = X_k theta_k, with an intercept at the active party.

The Jacobian of H_k is X_k and does not depend on the weights, so one opened data gradient serves all Q local steps of
a round (FedBCD 2019, eq. 57).
"""

from __future__ import annotations

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.normal_distribution import normal_quantile
from securevfl.models.block import Block
from securevfl.models.inputs import private_stream
from securevfl.protocols.differentiable import Jacobian

START = 0.5  # spread of f at the start


def starting_weights(X: Floats, scaled: Floats, targets: Floats, seed: int) -> Floats:
    """Draw the first weights of the active party, theta (d + 1 x c): f spreads by START over `scaled` (m x d), the
    intercept is 0.

    From zero weights the first residuals of a classifier take two values that everyone knows, and then a few opened
    gradients determine every label of their batches (`securevfl.audit.attacks.two_values`). So the start is drawn
    at random, from a hash of the active party's own columns X (m x d, before scaling) and its targets (n x c), rows in
    the order of ids: nobody else can compute it, and the same data and seed give the same model everywhere.
    """
    stream = private_stream(f"starting weights {seed}", X, targets)
    shape = X.shape[1], targets.shape[1]
    uniform = (np.frombuffer(stream(8 * shape[0] * shape[1]), "<u8").reshape(shape) >> 11) + 0.5
    spread = np.sqrt((scaled**2).mean(axis=0) * X.shape[1])
    theta = START * normal_quantile(uniform * 2.0**-53) / np.where(spread > 0, spread, 1.0)[:, None]
    return np.vstack([theta, np.zeros((1, targets.shape[1]))])


class Linear(Block):
    """One party's part: theta (d x c), and for the active party the intercept as its last row."""

    static_jacobian = True
    shares_outputs = True

    def __init__(self, theta: Floats, *, l2: float, intercept: bool) -> None:
        self.theta = theta
        self.intercept = intercept
        self.decay = np.full((len(theta), 1), l2)  # of each row of theta
        if intercept:
            self.decay[-1] = 0.0

    def start(self, X: Floats, scaled: Floats, targets: Floats | None, seed: int) -> None:
        """Set the first weights: as `starting_weights` draws them at the party with labels, zero elsewhere."""
        if targets is not None:
            self.theta = starting_weights(X, scaled, targets, seed)

    def jacobian(self, X: Floats) -> Jacobian:
        """X (n x d), with a column of ones where there is an intercept; the same for each output."""
        return Jacobian(np.column_stack([X, np.ones(len(X))]) if self.intercept else X)

    def forward(self, X: Floats, theta: Floats | None = None) -> Floats:
        """H (n x c), with these weights (d x c) in place of its own if any are given."""
        own = self.theta if theta is None else theta
        return X @ own[:-1] + own[-1] if self.intercept else X @ own

    def vjp(self, X: Floats, g: Floats) -> Floats:
        """J^T g (d x c), summed over the rows."""
        product = X.T @ g
        return np.vstack([product, g.sum(axis=0)]) if self.intercept else product

    def regularised(self, gradient: Floats) -> Floats:
        """gradient + l2 theta (d x c), from the gradient of the mean loss; the intercept is spared."""
        return gradient + self.decay * self.theta

    def penalty(self) -> float:
        """l2 |theta|^2 / 2, which this part adds to the mean loss."""
        return float((self.decay * self.theta**2).sum()) / 2

    def gram(self, X: Floats) -> Floats:
        """J^T J (d x d) over the rows of X, by which a step can follow the curvature of the block."""
        own = X.T @ X
        if not self.intercept:
            return own
        sums = X.sum(axis=0)[:, None]
        return np.block([[own, sums], [sums.T, np.full((1, 1), float(len(X)))]])
