"""What an update rule is, how a gradient becomes a change of the weights by it, and what all optimizers have in common.

As in optax (DeepMind 2020) a rule is a pair of functions and holds nothing that changes:

    init(theta) -> memory
    step(gradient, memory, eta) -> (change, memory)        theta + change are the new weights

eta is the step size of the optimizer's round. `begin` is told of every new exchange.

A rule that is *linear* uses +, - and products with numbers that are fixed beforehand, on weights and gradients alone.
So it runs on whatever has these (`Vector`): on floats, and on additive shares, where the changes that the holders of
shares compute add up to the change of the sum. One that is not linear squares, divides or takes roots of gradients; it
runs on floats (numpy arrays) alone.

    SGD, proximal, momentum    linear
    AdaGrad, Adam              not linear

L2 decay is part of the objective (FedBCD 2019, section 2): the gradient that a rule is given is that of the mean loss
plus l2 theta (`Linear.regularised`). So it passes through momentum, and AdaGrad and Adam scale it along with the rest;
it is not decoupled from them as in AdamW.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

from pydantic import Field, model_validator

from securevfl.base.arrays import Floats
from securevfl.base.config import Named
from securevfl.models.base import Model


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


class Rule(Named, ABC):
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


class Training(Named, ABC):
    """What a job names as its optimizer, whatever its steps go by."""

    method: ClassVar[str]  # the family of training it belongs to (`securevfl.methods`)
    grows: ClassVar[bool] = False  # whether it may visit parts of the rows that lie in each other

    @property
    def label(self) -> str:
        """Its name in a cost table."""
        return self.name

    @property
    def steps(self) -> int:
        """Q, the local steps a round."""
        return 1

    @property
    def reweighs(self) -> bool:
        """Whether a party may weigh the rows of a batch anew in every local step."""
        return False

    def opened(self, model: Model, visits: Sequence[int]) -> int:
        """Count the gradients that a passive party has opened in a run with these visits, if residuals are sealed."""
        return len(visits)

    def exchanges(self, passives: Sequence[str]) -> int:
        """Exchanges of forward outputs in one visit to a batch. With more than one, parties take their steps in turn,
        so that one party alone moves between two exchanges."""
        return 1


class Optimizer(Training, ABC):
    """Steps of a size that is set, but for optimizers that know one (`own_size`)."""

    own_size: ClassVar[bool] = False

    lr: float | None = Field(gt=0)
    """eta, the size of the first step."""
    decay: Literal["none", "sqrt_t", "sqrt_tk", "inverse"] = "none"
    """How steps shrink over rounds t and K parties: lr / sqrt(t + 1), lr / sqrt(t K) from t = 1, or lr / (t + 1)."""

    def eta(self, t: int, parties: int) -> float:
        """Step size of round t, counted from 0."""
        return self.first * self.shrunk(t, parties)

    @property
    def first(self) -> float:
        """The first step size eta, which has been checked to be set (`check_set`)."""
        assert self.lr is not None, "it has been checked"
        return self.lr

    def check_set(self) -> None:
        """ValueError, with the remedy, where no step size is set."""
        if self.lr is None:
            raise ValueError("optimizer.lr: is missing; add it, as no party here knows a step by its columns")

    def shrunk(self, t: int, parties: int) -> float:
        """Return the step of round t, counted from 0, as a share of the first one."""
        if self.decay == "none":
            return 1.0
        if self.decay == "inverse":
            return 1 / (t + 1)
        return float(1 / ((t + 1) * (parties if self.decay == "sqrt_tk" else 1)) ** 0.5)

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        if self.lr is None and not self.own_size:
            raise ValueError("lr: is missing; add it")
        return self
