"""Adam: steps by running means of gradients and of their squares (Kingma and Ba 2015, Algorithm 1).

    m = beta1 m + (1 - beta1) g          v = beta2 v + (1 - beta2) g^2
    theta -= eta m' / (sqrt(v') + eps)   m' = m / (1 - beta1^t), v' = v / (1 - beta2^t), t counts steps from 1

Not linear: it squares gradients and divides by roots.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from securevfl.base.arrays import Floats
from securevfl.optim.rules import Memory, Rule


class Adam(Rule):
    """`beta1` and `beta2` are how much the means keep at each step; `eps` keeps the step finite."""

    name: ClassVar[str] = "adam"
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """How much the mean of gradients keeps at each step."""
    beta2: float = Field(default=0.999, ge=0, lt=1)
    """How much the mean of squared gradients keeps at each step."""
    eps: float = Field(default=1e-8, gt=0)
    """Keeps steps finite."""

    @property
    def linear(self) -> bool:
        return False

    def init(self, theta: Floats) -> Memory[Floats]:  # type: ignore[override]  # floats alone
        return Memory({"mean": np.zeros_like(theta), "squares": np.zeros_like(theta)})

    def step(  # type: ignore[override]  # floats alone
        self, gradient: Floats, memory: Memory[Floats], eta: float
    ) -> tuple[Floats, Memory[Floats]]:
        t = memory.steps + 1
        mean = self.beta1 * memory.vectors["mean"] + (1 - self.beta1) * gradient
        squares = self.beta2 * memory.vectors["squares"] + (1 - self.beta2) * gradient**2
        unbiased, spread = mean / (1 - self.beta1**t), np.sqrt(squares / (1 - self.beta2**t))
        return -eta * unbiased / (spread + self.eps), Memory({"mean": mean, "squares": squares}, t)
