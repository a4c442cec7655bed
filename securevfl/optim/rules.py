"""The update rules that an optimizer can name: those that take steps, and those around them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from securevfl.base.arrays import Floats
from securevfl.base.config import NamedOption

# What an update rule is, how a gradient becomes a change of the weights by it, and what all optimizers have in common.
#
# As in optax (DeepMind 2020) a rule is a pair of functions and holds nothing that changes:
#
#     init(theta) -> memory
#     step(gradient, memory, eta) -> (change, memory)        theta + change are the new weights
#
# eta is the step size of the optimizer's round. `begin` is told of every new exchange.
#
# A rule that is *linear* uses +, - and products with numbers that are fixed beforehand, on weights and gradients alone.
# So it runs on whatever has these (`Vector`): on floats, and on additive shares, where the changes that the holders of
# shares compute add up to the change of the sum. One that is not linear squares, divides or takes roots of gradients;
# it runs on floats (numpy arrays) alone.
#
#     SGD, proximal, momentum    linear
#     AdaGrad, Adam              not linear
#
# L2 decay is part of the objective (FedBCD 2019, section 2): the gradient that a rule is given is that of the mean loss
# plus l2 theta (`Linear.regularised`). So it passes through momentum, and AdaGrad and Adam scale it along with the
# rest; it is not decoupled from them as in AdamW.


class Vector(Protocol):
    """What a linear rule computes on."""

    def __add__(self, other: Self, /) -> Self: ...

    def __sub__(self, other: Self, /) -> Self: ...

    def __rmul__(self, factor: float, /) -> Self: ...


V = TypeVar("V", bound=Vector)


@dataclass(frozen=True)
class Memory(Generic[V]):
    """What a rule remembers: vectors of the shape of the weights, by name, and how many steps it has taken."""

    vectors: Mapping[str, V] = field(default_factory=dict)
    steps: int = 0


class Rule(NamedOption, ABC):
    """An update rule with its options."""

    @property
    @abstractmethod
    def linear(self) -> bool:
        """Whether its operations are linear, so that it runs on shares too."""

    @abstractmethod
    def init(self, theta: V) -> Memory[V]:
        """Return what the rule remembers before the first step from these weights."""

    @abstractmethod
    def step(self, gradient: V, memory: Memory[V], eta: float) -> tuple[V, Memory[V]]:
        """Return the change of the weights, and what the rule remembers after it. `gradient` is that of the objective,
        L2 included."""

    def begin(self, memory: Memory[V]) -> Memory[V]:
        """Return what the rule remembers when the local steps on a new exchange begin."""
        return memory


class UpdatedModel(Protocol):
    """A model as its updates see it."""

    theta: Floats

    def regularised(self, gradient: Floats) -> Floats:
        """Add the gradient of the penalty to that of the mean loss, which gives the gradient of the objective."""


class Updater:
    """Moves a model's weights by a rule. Its state goes where the model's does: to the checkpoint."""

    def __init__(self, rule: Rule, model: UpdatedModel, state: Mapping[str, Any] | None = None) -> None:
        """`state` is what an earlier updater of the same rule and weights has left."""
        self._rule = rule
        self._model = model
        self._memory: Memory[Floats] = rule.init(model.theta) if state is None else Memory(**state)

    def begin(self) -> None:
        """Begin the local steps on a new exchange."""
        self._memory = self._rule.begin(self._memory)

    def step(self, gradient: Floats, eta: float) -> None:
        """One step, from the gradient of the mean loss in the shape of the weights."""
        change, self._memory = self._rule.step(self._model.regularised(gradient), self._memory, eta)
        self._model.theta = self._model.theta + change

    @property
    def state(self) -> dict[str, Any]:
        """What the rule remembers, as plain data and arrays."""
        return {"vectors": dict(self._memory.vectors), "steps": self._memory.steps}


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
