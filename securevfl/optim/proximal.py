"""The proximal term of FedPBCD: mu * (theta - theta at the exchange) is added to the gradient (FedBCD 2019, eq. 11).

It keeps the local steps of a round close to the weights theta for which the other parties have received outputs. The
distance from these weights is the sum of the changes since the exchange, so the rule is linear
(`securevfl.optim.rules`) if its inner rule is linear.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, SerializeAsAny, field_validator

from securevfl.optim.rules import Memory, Rule, Sgd, V
from securevfl.optim.step_rules import STEP_RULES

DISPLACEMENT = "moved"  # key of the memory vector that holds the change of the weights since the exchange

INNER_PREFIX = "rule."  # prefix of the keys of the inner rule's vectors in the memory


class Proximal(Rule):
    """Steps by an inner `rule`, with a gradient that pulls the weights back with strength `mu`."""

    name: ClassVar[str] = "proximal"
    mu: float = Field(gt=0, le=1e12)
    """Strength of the pull towards the weights at the exchange."""
    rule: SerializeAsAny[Rule] = Field(default_factory=Sgd)
    """The inner rule, which takes the steps."""

    @field_validator("rule", mode="before")
    @classmethod
    def _read_rule(cls, value: Any) -> Any:
        return STEP_RULES.read(value)

    @property
    def linear(self) -> bool:
        """Whether the inner rule is linear."""
        return self.rule.linear

    @property
    def inner(self) -> Rule:
        """The inner rule, which takes the steps."""
        return self.rule.inner

    def init(self, theta: V) -> Memory[V]:
        """Return the memory before the first step; see `Rule.init`."""
        return _combine(theta - theta, self.rule.init(theta))

    def step(self, gradient: V, memory: Memory[V], eta: float) -> tuple[V, Memory[V]]:
        """Return the change of the weights for one step, and the new state; see `Rule.step`."""
        displacement = memory.vectors[DISPLACEMENT]
        change, inner = self.rule.step(gradient + self.mu * displacement, _inner(memory), eta)
        return change, _combine(displacement + change, inner)

    def begin(self, memory: Memory[V]) -> Memory[V]:
        """Return the state at the start of the local steps on a new exchange: the distance is 0 again."""
        displacement = memory.vectors[DISPLACEMENT]
        return _combine(displacement - displacement, self.rule.begin(_inner(memory)))


def _combine(displacement: V, inner: Memory[V]) -> Memory[V]:
    return Memory(
        {DISPLACEMENT: displacement} | {INNER_PREFIX + name: vector for name, vector in inner.vectors.items()},
        inner.steps,
    )


def _inner(memory: Memory[V]) -> Memory[V]:
    vectors = {
        name.removeprefix(INNER_PREFIX): vector
        for name, vector in memory.vectors.items()
        if name.startswith(INNER_PREFIX)
    }
    return Memory(vectors, memory.steps)
