"""Momentum (heavy ball), an update rule (Polyak 1964, for a constant step size).

For weights theta with gradient g: v = beta * v + g, theta -= eta * v. beta is a constant, so the weights are a
combination of all gradients with coefficients that are known in advance. The rule is therefore linear and can run on
secret shares (`securevfl.optim.rules`).
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from securevfl.optim.rules import Memory, Rule, V


class Momentum(Rule):
    """Gradient descent with momentum."""

    name: ClassVar[str] = "momentum"
    beta: float = Field(default=0.9, ge=0, lt=1)
    """Share of the velocity that remains after each step."""

    @property
    def linear(self) -> bool:
        """Always true: the velocity is a sum of gradients with constant factors."""
        return True

    def init(self, theta: V) -> Memory[V]:
        """Return the memory before the first step; see `Rule.init`."""
        return Memory({"velocity": theta - theta})

    def step(self, gradient: V, memory: Memory[V], eta: float) -> tuple[V, Memory[V]]:
        """Return the change of the weights for one step, and the new state; see `Rule.step`."""
        velocity = self.beta * memory.vectors["velocity"] + gradient
        return -eta * velocity, Memory({"velocity": velocity})
