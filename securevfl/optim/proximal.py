"""The proximal term of FedPBCD: mu (theta - theta at the exchange) is added to the gradient (FedBCD 2019, eq. 11).

It holds the local steps of a round to where the others have last seen this party. The distance from there is the sum
of the changes since, so it is linear where the rule is that takes the steps.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, SerializeAsAny, field_validator

from securevfl.optim.rules import Memory, Rule, Sgd, V
from securevfl.optim.step_rules import STEP_RULES

MOVED = "moved"  # since the exchange

OF_RULE = "rule."  # before the names of what the rule that takes the steps remembers


class Proximal(Rule):
    """Steps by another `rule`, on a gradient that pulls back with the weight `mu`."""

    name: ClassVar[str] = "proximal"
    mu: float = Field(gt=0)
    """Weight of the pull back to where the exchange began."""
    rule: SerializeAsAny[Rule] = Field(default_factory=Sgd)
    """The rule that takes the steps."""

    @field_validator("rule", mode="before")
    @classmethod
    def _read_rule(cls, value: Any) -> Any:
        return STEP_RULES.read(value)

    @property
    def linear(self) -> bool:
        return self.rule.linear

    def init(self, theta: V) -> Memory[V]:
        return _joined(theta - theta, self.rule.init(theta))

    def step(self, gradient: V, memory: Memory[V], eta: float) -> tuple[V, Memory[V]]:
        moved = memory.vectors[MOVED]
        change, own = self.rule.step(gradient + self.mu * moved, _of_rule(memory), eta)
        return change, _joined(moved + change, own)

    def begin(self, memory: Memory[V]) -> Memory[V]:
        moved = memory.vectors[MOVED]
        return _joined(moved - moved, self.rule.begin(_of_rule(memory)))


def _joined(moved: V, own: Memory[V]) -> Memory[V]:
    return Memory({MOVED: moved} | {OF_RULE + name: vector for name, vector in own.vectors.items()}, own.steps)


def _of_rule(memory: Memory[V]) -> Memory[V]:
    own = {name.removeprefix(OF_RULE): each for name, each in memory.vectors.items() if name.startswith(OF_RULE)}
    return Memory(own, memory.steps)
