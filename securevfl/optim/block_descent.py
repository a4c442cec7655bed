"""Steps along gradients of each party's own, turned by a matrix that the party alone knows, with fixed momentum.

Every party k moves its block of weights by theta_k -= lr / K P_k X_k^T g / n, all at once, with

    P_k = (c X_k^T X_k / n + ridge I)^-1

c the largest curvature of the loss: the step of Newton's method under a bound on the Hessian (Boehning and Lindsay
1988) on the block alone. With lr = 1 the sum of K such steps never goes too far, whatever the columns. With
`momentum` gradients are taken at points extrapolated by (t - 1) / (t + 2) in visit t, from 1 (Nesterov 1983), numbers
that are fixed ahead.

So theta is a combination of all gradients so far with coefficients that are known before any of them is, and P_k
needs nobody else: it trains on shares. It takes few visits of large batches: batch_size = "all", or "growing", for
which P_k is of all training rows and momentum goes on from each part to the next, is what it is for.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from securevfl.optim.optimizer import Optimizer


class BlockDescent(Optimizer):
    """The model's l2 is added to the ridge, and weights do not decay beside."""

    name: ClassVar[str] = "block_descent"
    family: ClassVar[str] = "shares"
    grows: ClassVar[bool] = True
    lr: float = Field(default=1.0, gt=0)
    """The size of a step, in units of the safe one. With evaluations in between a training of larger steps whose loss
    rises goes back to its best model and on by half the step, down to the safe one; 2 takes half the visits on most
    tables."""
    decay: Literal["none"] = "none"
    momentum: bool = True
    """Takes gradients at extrapolated points."""
    ridge: float = Field(default=1e-2, gt=0)
    """What is added to the curvature; it holds back directions in which a party's columns hardly vary."""

    @property
    def label(self) -> str:
        return "BlockDescent"

    @property
    def may_overshoot(self) -> bool:
        return self.momentum and self.first > 1

    def extrapolation(self, visit: int) -> float:
        """How far the point of the next gradient lies beyond the weights after `visit` visits, from 1, in units of the
        last change."""
        return (visit - 1) / (visit + 2) if self.momentum else 0.0
