"""A party's block of a linear model: H_k = X_k @ theta_k, plus an intercept at the active party, which has the labels.

The Jacobian J of H_k by the weights theta_k is X_k and does not depend on them. One decrypted gradient therefore serves
all local steps of a round (FedBCD 2019, eq. 57). g (n, c) is the residual: the derivative of the loss by the outputs.
"""

from __future__ import annotations

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.normal_distribution import normal_quantile
from securevfl.models.block import Block
from securevfl.models.inputs import private_stream
from securevfl.protocols.differentiable import Jacobian

START_DEVIATION = 0.5
"""Standard deviation of the outputs f of the model with its initial weights."""


def starting_weights(X: Floats, scaled: Floats, targets: Floats, seed: int) -> Floats:
    """Draw the initial weights of the active party, such that f has the standard deviation START_DEVIATION.

    With zero weights the first residuals of a classifier would take two values that everybody knows, and a few opened
    gradients would determine every label of their batches (`securevfl.audit.attacks.two_values`). So the weights are
    derived from a hash of the active party's rows and targets: nobody else can compute them, and equal data and seeds
    give equal models.

    Args:
        X: rows of the party (m, d) in the order of ids, before scaling.
        scaled: the same rows after scaling.
        targets: their targets (m, c).
        seed: the seed of the job.

    Returns:
        The weights (d + 1, c); the intercept, in the last row, is 0.
    """
    stream = private_stream(f"starting weights {seed}", X, targets)
    shape = X.shape[1], targets.shape[1]
    uniform = (np.frombuffer(stream(8 * shape[0] * shape[1]), "<u8").reshape(shape) >> 11) + 0.5
    size = np.sqrt((scaled**2).mean(axis=0) * X.shape[1])
    theta = START_DEVIATION * normal_quantile(uniform * 2.0**-53) / np.where(size > 0, size, 1.0)[:, None]
    return np.vstack([theta, np.zeros((1, targets.shape[1]))])


class Linear(Block):
    """One party's block: theta (d, c), with the intercept as the last row at the active party.

    Args:
        theta: the weights.
        l2: weight of half the squared norm of theta; the intercept is not regularised.
        intercept: whether the last row of theta is the intercept.
    """

    static_jacobian = True
    shares_outputs = True

    def __init__(self, theta: Floats, *, l2: float, intercept: bool) -> None:
        self.theta = theta
        self.intercept = intercept
        self.decay = np.full((len(theta), 1), l2)
        if intercept:
            self.decay[-1] = 0.0

    def start(self, X: Floats, scaled: Floats, targets: Floats | None, seed: int) -> None:
        """Set the initial weights: `starting_weights` at the party with labels; zeros elsewhere."""
        if targets is not None:
            self.theta = starting_weights(X, scaled, targets, seed)

    def jacobian(self, X: Floats) -> Jacobian:
        """Return X (n, d), with a column of ones for the intercept; it is the same for each output."""
        return Jacobian(np.column_stack([X, np.ones(len(X))]) if self.intercept else X)

    def forward(self, X: Floats, theta: Floats | None = None) -> Floats:
        """Return the outputs H (n, c); `theta`, if passed, replaces the block's weights."""
        weights = self.theta if theta is None else theta
        return X @ weights[:-1] + weights[-1] if self.intercept else X @ weights

    def vjp(self, X: Floats, g: Floats) -> Floats:
        """Return X^T g, with a last row for the intercept if there is one: the gradient of the summed loss by theta."""
        product = X.T @ g
        return np.vstack([product, g.sum(axis=0)]) if self.intercept else product

    def regularised(self, gradient: Floats) -> Floats:
        """Return `gradient` (d, c), that of the mean loss, plus l2 * theta except for the intercept."""
        return gradient + self.decay * self.theta

    def penalty(self) -> float:
        """Return l2 / 2 * |theta|^2 without the intercept, the penalty that is added to the mean loss."""
        return float((self.decay * self.theta**2).sum()) / 2

    def gram(self, X: Floats) -> Floats:
        """Return J^T J (d, d) over the rows of X, the curvature that steps of this block can use."""
        product = X.T @ X
        if not self.intercept:
            return product
        sums = X.sum(axis=0)[:, None]
        return np.block([[product, sums], [sums.T, np.full((1, 1), float(len(X)))]])
