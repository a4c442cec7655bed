"""Gradient descent: theta -= eta g (Robbins and Monro 1951; FedBCD 2019, Algorithm 1). Nothing is remembered."""

from __future__ import annotations

from typing import ClassVar

from securevfl.optim.update import Memory, Rule, V


class Sgd(Rule):
    """A plain step of size eta against the gradient."""

    name: ClassVar[str] = "sgd"

    @property
    def linear(self) -> bool:
        return True

    def init(self, theta: V) -> Memory[V]:
        return Memory()

    def step(self, gradient: V, memory: Memory[V], eta: float) -> tuple[V, Memory[V]]:
        return -eta * gradient, memory
