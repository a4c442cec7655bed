"""Momentum (heavy ball): v = beta v + g, theta -= eta v (Polyak 1964, for a constant step size).

beta is a constant, so the weights are a combination of all gradients with coefficients that are known in advance: the
rule is linear.
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
        """True."""
        return True

    def init(self, theta: V) -> Memory[V]:
        """Return the state before the first step."""
        return Memory({"velocity": theta - theta})

    def step(self, gradient: V, memory: Memory[V], eta: float) -> tuple[V, Memory[V]]:
        """Take one step; see `Rule.step`."""
        velocity = self.beta * memory.vectors["velocity"] + gradient
        return -eta * velocity, Memory({"velocity": velocity})
