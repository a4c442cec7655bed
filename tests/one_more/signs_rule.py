"""Another update rule: steps by the sign of the running mean of gradients."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.optim.rules import Memory, Rule


class Signs(Rule):
    """Steps of the same length in each weight."""

    name: ClassVar[str] = "signs"
    beta: float = 0.9
    """How much of the running mean of gradients a step keeps."""

    @property
    def linear(self) -> bool:
        return False

    def init(self, theta: Floats) -> Memory[Floats]:  # type: ignore[override]
        return Memory({"mean": np.zeros_like(theta)})

    def step(  # type: ignore[override]
        self, gradient: Floats, memory: Memory[Floats], eta: float
    ) -> tuple[Floats, Memory[Floats]]:
        mean = self.beta * memory.vectors["mean"] + (1 - self.beta) * gradient
        return -eta * np.sign(mean), Memory({"mean": mean})
