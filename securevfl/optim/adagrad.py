"""AdaGrad: G += g^2, theta -= eta g / (sqrt(G) + eps), number by number (Duchi, Hazan and Singer 2011, figure 1).

Not linear: it squares gradients and divides by roots.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from securevfl.base.arrays import Floats
from securevfl.optim.rules import Memory, Rule


class AdaGrad(Rule):
    """A step for each weight that shrinks with the gradients it has seen; `eps` keeps it finite."""

    name: ClassVar[str] = "adagrad"
    eps: float = Field(default=1e-10, gt=0)
    """Keeps the first steps finite."""

    @property
    def linear(self) -> bool:
        return False

    def init(self, theta: Floats) -> Memory[Floats]:  # type: ignore[override]  # floats alone
        return Memory({"squares": np.zeros_like(theta)})

    def step(  # type: ignore[override]  # floats alone
        self, gradient: Floats, memory: Memory[Floats], eta: float
    ) -> tuple[Floats, Memory[Floats]]:
        squares = memory.vectors["squares"] + gradient**2
        return -eta * gradient / (np.sqrt(squares) + self.eps), Memory({"squares": squares})
