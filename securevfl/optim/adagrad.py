"""AdaGrad: G += g^2, theta -= eta g / (sqrt(G) + eps), for each weight (Duchi, Hazan and Singer 2011, figure 1).

Not linear: it squares gradients and divides by roots.
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
        """False: it squares gradients."""
        return False

    def init(self, theta: Floats) -> Memory[Floats]:  # type: ignore[override]  # only floats
        """Return the state before the first step."""
        return Memory({"squares": np.zeros_like(theta)})

    def step(  # type: ignore[override]  # only floats
        self, gradient: Floats, memory: Memory[Floats], eta: float
    ) -> tuple[Floats, Memory[Floats]]:
        """Take one step; see `Rule.step`."""
        squares = memory.vectors["squares"] + gradient**2
        return -eta * gradient / (np.sqrt(squares) + self.eps), Memory({"squares": squares})
