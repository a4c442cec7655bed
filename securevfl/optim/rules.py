"""Update rules: how a gradient changes the weights.

As in optax (DeepMind 2020), a rule is a pair of functions without mutable state:
    init(theta) -> memory
    step(gradient, memory, eta) -> (change, memory)        theta + change are the new weights
theta are weights and eta is the step size of the round. In an exchange the parties send each other model outputs and
residuals, the derivatives of the loss by these outputs, for one batch.

A *linear* rule (SGD, proximal, momentum) uses only +, - and products with constants that are fixed in advance. It also
runs on additive shares, where the changes that the share holders compute add up to the change of the weights. A rule
that is not linear (AdaGrad, Adam) squares, divides or takes roots of gradients, and runs only on numpy arrays. The
gradient that a rule receives includes the l2 penalty (`Linear.regularised`); it is not decoupled as in AdamW. In a
local step, a party updates its weights with a residual that it already has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from securevfl.base.arrays import Floats
from securevfl.base.config import NamedOption


class Vector(Protocol):
    """Anything that can be added, subtracted and multiplied by a number: numpy arrays, or additive shares."""

    def __add__(self, other: Self, /) -> Self: ...

    def __sub__(self, other: Self, /) -> Self: ...

    def __rmul__(self, factor: float, /) -> Self: ...


V = TypeVar("V", bound=Vector)


@dataclass(frozen=True)
class Memory(Generic[V]):
    """The state of a rule between two steps, such as a running mean of gradients.

    Attributes:
        vectors: vectors of the shape of the weights, by name.
        steps: number of steps so far.
    """

    vectors: Mapping[str, V] = field(default_factory=dict)
    steps: int = 0


class Rule(NamedOption, ABC):
    """An update rule with its options."""

    @property
    @abstractmethod
    def linear(self) -> bool:
        """Whether the rule is linear, so that it also runs on additive shares."""

    @property
    def inner(self) -> Rule:
        """The rule that takes the steps: this rule, or the rule to which this one passes a changed gradient."""
        return self

    @abstractmethod
    def init(self, theta: V) -> Memory[V]:
        """Return the memory before the first step from the weights theta."""

    @abstractmethod
    def step(self, gradient: V, memory: Memory[V], eta: float) -> tuple[V, Memory[V]]:
        """Take one step.

        Args:
            gradient: gradient of the objective, l2 penalty included.
            memory: the memory before the step.
            eta: the step size.

        Returns:
            The change of the weights, and the memory after the step.
        """

    def begin(self, memory: Memory[V]) -> Memory[V]:
        """Return the state at the start of the local steps on a new exchange."""
        return memory


class UpdatedModel(Protocol):
    """The attributes of a model that an `Updater` uses."""

    theta: Floats

    def regularised(self, gradient: Floats) -> Floats:
        """Return the gradient of the objective: `gradient`, that of the mean loss, plus that of the penalty."""


class Updater:
    """Updates the weights of a model by a rule. Checkpoints store its state with the model.

    Args:
        rule: the update rule, which turns a gradient into a step.
        model: the model whose weights are updated.
        state: the `state` of an earlier updater of the same rule and weights, or None.
    """

    def __init__(self, rule: Rule, model: UpdatedModel, state: Mapping[str, Any] | None = None) -> None:
        self._rule = rule
        self._model = model
        self._memory: Memory[Floats] = rule.init(model.theta) if state is None else Memory(**state)

    def begin(self) -> None:
        """Start the local steps on a new exchange."""
        self._memory = self._rule.begin(self._memory)

    def step(self, gradient: Floats, eta: float) -> None:
        """Take one step with the gradient of the mean loss, in the shape of the weights."""
        change, self._memory = self._rule.step(self._model.regularised(gradient), self._memory, eta)
        self._model.theta = self._model.theta + change

    @property
    def state(self) -> dict[str, Any]:
        """The state of the rule as plain data and arrays."""
        return {"vectors": dict(self._memory.vectors), "steps": self._memory.steps}


class Sgd(Rule):
    """Gradient descent: a step of size eta against the gradient."""

    name: ClassVar[str] = "sgd"

    @property
    def linear(self) -> bool:
        """Always true."""
        return True

    def init(self, theta: V) -> Memory[V]:
        """Return an empty memory."""
        return Memory()

    def step(self, gradient: V, memory: Memory[V], eta: float) -> tuple[V, Memory[V]]:
        """Return the change of the weights for one step, and the new memory; see `Rule.step`."""
        return -eta * gradient, memory
