"""Adam, an update rule with running means of gradients and of squared gradients (Kingma and Ba 2015, Algorithm 1).

    m = beta1 * m + (1 - beta1) * g          v = beta2 * v + (1 - beta2) * g^2
    theta -= eta * m' / (sqrt(v') + eps)     m' = m / (1 - beta1^t), v' = v / (1 - beta2^t), t counts steps from 1

theta is a weight, g its gradient and eta the step size. The rule is not linear in gradients, because it squares them
and divides by roots; so it cannot run on secret shares (`securevfl.optim.rules`).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from securevfl.base.arrays import Floats
from securevfl.optim.rules import Memory, Rule


class Adam(Rule):
    """Adam: steps by running means of gradients and of squared gradients."""

    name: ClassVar[str] = "adam"
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay rate of the mean of gradients."""
    beta2: float = Field(default=0.999, ge=0, lt=1)
    """Decay rate of the mean of squared gradients."""
    eps: float = Field(default=1e-8, gt=0, le=1e12)
    """Term in the denominator that keeps steps finite."""

    @property
    def linear(self) -> bool:
        """Always false: Adam squares gradients."""
        return False

    def init(self, theta: Floats) -> Memory[Floats]:  # type: ignore[override]  # only floats
        """Return the memory before the first step; see `Rule.init`."""
        return Memory({"mean": np.zeros_like(theta), "squares": np.zeros_like(theta)})

    def step(  # type: ignore[override]  # only floats
        self, gradient: Floats, memory: Memory[Floats], eta: float
    ) -> tuple[Floats, Memory[Floats]]:
        """Return the change of the weights for one step, and the new state; see `Rule.step`."""
        t = memory.steps + 1
        mean = self.beta1 * memory.vectors["mean"] + (1 - self.beta1) * gradient
        squares = self.beta2 * memory.vectors["squares"] + (1 - self.beta2) * gradient**2
        unbiased, root = mean / (1 - self.beta1**t), np.sqrt(squares / (1 - self.beta2**t))
        return -eta * unbiased / (root + self.eps), Memory({"mean": mean, "squares": squares}, t)
