"""Momentum, the heavy ball: v = beta v + g, theta -= eta v (Polyak 1964, for a step size that stays).

beta is fixed beforehand, so the weights are a combination of all gradients with coefficients that are known before
any of them is: it is linear.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from securevfl.optim.rules import Memory, Rule, V


class Momentum(Rule):
    """A step along the gradients so far, each worth `beta` of the next."""

    name: ClassVar[str] = "momentum"
    beta: float = Field(default=0.9, ge=0, lt=1)
    """How much of the velocity is kept at each step."""

    @property
    def linear(self) -> bool:
        return True

    def init(self, theta: V) -> Memory[V]:
        return Memory({"velocity": theta - theta})

    def step(self, gradient: V, memory: Memory[V], eta: float) -> tuple[V, Memory[V]]:
        velocity = self.beta * memory.vectors["velocity"] + gradient
        return -eta * velocity, Memory({"velocity": velocity})
