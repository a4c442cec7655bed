"""AdaGrad, an update rule (Duchi, Hazan and Singer 2011, figure 1).

For each weight theta with gradient g: G += g^2, theta -= eta * g / (sqrt(G) + eps). The rule is not linear in
gradients, because it squares them and divides by roots; so it cannot run on secret shares (`securevfl.optim.rules`).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from securevfl.base.arrays import Floats
from securevfl.optim.rules import Memory, Rule


class AdaGrad(Rule):
    """AdaGrad: the step of each weight shrinks with the sum of its squared gradients."""

    name: ClassVar[str] = "adagrad"
    eps: float = Field(default=1e-10, gt=0, le=1e12)
    """Term in the denominator that keeps the first steps finite."""

    @property
    def linear(self) -> bool:
        """Always false: AdaGrad squares gradients."""
        return False

    def init(self, theta: Floats) -> Memory[Floats]:  # type: ignore[override]  # only floats
        """Return the memory before the first step; see `Rule.init`."""
        return Memory({"squares": np.zeros_like(theta)})

    def step(  # type: ignore[override]  # only floats
        self, gradient: Floats, memory: Memory[Floats], eta: float
    ) -> tuple[Floats, Memory[Floats]]:
        """Return the change of the weights for one step, and the new state; see `Rule.step`."""
        squares = memory.vectors["squares"] + gradient**2
        return -eta * gradient / (np.sqrt(squares) + self.eps), Memory({"squares": squares})
