"""The update rules that an optimizer can name: those that take steps, and those around them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

import numpy as np
from pydantic import BeforeValidator, Field, SerializeAsAny, field_validator, model_validator

from securevfl.base.arrays import Floats
from securevfl.base.config import Named, Registry
from securevfl.models.base import Model

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

    method: ClassVar[str]  # the family of training it belongs to (`securevfl.families`)
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

    @property
    def dares(self) -> bool:
        """Whether steps are longer than safe ones, so that evaluations say where to go back."""
        return False

    def count_openings(self, model: Model, visits: Sequence[int]) -> int:
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


# AdaGrad: G += g^2, theta -= eta g / (sqrt(G) + eps), number by number (Duchi, Hazan and Singer 2011, figure 1).
#
# Not linear: it squares gradients and divides by roots.


class AdaGrad(Rule):
    """A step for each weight that shrinks with the gradients it has seen; `eps` keeps it finite."""

    name: ClassVar[str] = "adagrad"
    eps: float = Field(default=1e-10, gt=0)
    """Keeps the first steps finite."""

    @property
    def linear(self) -> bool:
        return False

    def init(self, theta: Floats) -> Memory[Floats]:  # type: ignore[override]  # floats alone
        return Memory({"squares": np.zeros_like(theta)})

    def step(  # type: ignore[override]  # floats alone
        self, gradient: Floats, memory: Memory[Floats], eta: float
    ) -> tuple[Floats, Memory[Floats]]:
        squares = memory.vectors["squares"] + gradient**2
        return -eta * gradient / (np.sqrt(squares) + self.eps), Memory({"squares": squares})


# Adam: steps by running means of gradients and of their squares (Kingma and Ba 2015, Algorithm 1).
#
#     m = beta1 m + (1 - beta1) g          v = beta2 v + (1 - beta2) g^2
#     theta -= eta m' / (sqrt(v') + eps)   m' = m / (1 - beta1^t), v' = v / (1 - beta2^t), t counts steps from 1
#
# Not linear: it squares gradients and divides by roots.


class Adam(Rule):
    """`beta1` and `beta2` are how much the means keep at each step; `eps` keeps the step finite."""

    name: ClassVar[str] = "adam"
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """How much the mean of gradients keeps at each step."""
    beta2: float = Field(default=0.999, ge=0, lt=1)
    """How much the mean of squared gradients keeps at each step."""
    eps: float = Field(default=1e-8, gt=0)
    """Keeps steps finite."""

    @property
    def linear(self) -> bool:
        return False

    def init(self, theta: Floats) -> Memory[Floats]:  # type: ignore[override]  # floats alone
        return Memory({"mean": np.zeros_like(theta), "squares": np.zeros_like(theta)})

    def step(  # type: ignore[override]  # floats alone
        self, gradient: Floats, memory: Memory[Floats], eta: float
    ) -> tuple[Floats, Memory[Floats]]:
        t = memory.steps + 1
        mean = self.beta1 * memory.vectors["mean"] + (1 - self.beta1) * gradient
        squares = self.beta2 * memory.vectors["squares"] + (1 - self.beta2) * gradient**2
        unbiased, spread = mean / (1 - self.beta1**t), np.sqrt(squares / (1 - self.beta2**t))
        return -eta * unbiased / (spread + self.eps), Memory({"mean": mean, "squares": squares}, t)


# Momentum, the heavy ball: v = beta v + g, theta -= eta v (Polyak 1964, for a step size that stays).
#
# beta is fixed beforehand, so the weights are a combination of all gradients with coefficients that are known before
# any of them is: it is linear.


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


# The update rules that take a step by themselves, which others are put around. Adding one is one line here.


STEP_RULES: Registry[Rule] = Registry("rule", Sgd, Momentum, AdaGrad, Adam)


# The proximal term of FedPBCD: mu (theta - theta at the exchange) is added to the gradient (FedBCD 2019, eq. 11).
#
# It holds the local steps of a round to where the others have last seen this party. The distance from there is the sum
# of the changes since, so it is linear where the rule is that takes the steps.


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


RULES: Registry[Rule] = Registry("rule", *STEP_RULES.values(), Proximal)
AnyRule = Annotated[SerializeAsAny[Rule], BeforeValidator(RULES.read)]


# Steps along gradients of each party's own, turned by a matrix that the party alone knows, with fixed momentum.
#
# Every party k moves its block of weights by theta_k -= lr / K P_k X_k^T g / n, all at once, with
#
#     P_k = (c X_k^T X_k / n + ridge I)^-1
#
# c the largest curvature of the loss: the step of Newton's method under a bound on the Hessian (Boehning and Lindsay
# 1988) on the block alone. With lr = 1 the sum of K such steps never goes too far, whatever the columns. With
# `momentum` gradients are taken at points extrapolated by (t - 1) / (t + 2) in visit t, from 1 (Nesterov 1983), numbers
# that are fixed ahead.
#
# So theta is a combination of all gradients so far with coefficients that are known before any of them is, and P_k
# needs nobody else: it trains on shares. It takes few visits of large batches: batch_size = "all", or "growing", for
# which P_k is of all training rows and momentum goes on from each part to the next, is what it is for.


class BlockDescent(Optimizer):
    """The model's l2 is added to the ridge, and weights do not decay beside."""

    name: ClassVar[str] = "block_descent"
    method: ClassVar[str] = "shares"
    grows: ClassVar[bool] = True
    lr: float = Field(default=1.0, gt=0)
    """The size of a step, in units of the safe one. With evaluations in between a training of larger steps whose loss
    rises goes back to its best model and on by half the step, down to the safe one; 2 takes half the visits on most
    tables."""
    decay: Literal["none"] = "none"
    momentum: bool = True
    """Takes gradients at extrapolated points."""
    ridge: float = Field(default=1e-2, gt=0)
    """What is added to the curvature; it holds back directions in which a party's columns hardly vary."""

    @property
    def label(self) -> str:
        return "BlockDescent"

    @property
    def dares(self) -> bool:
        return self.momentum and self.first > 1

    def extrapolation(self, visit: int) -> float:
        """How far the point of the next gradient lies beyond the weights after `visit` visits, from 1, in units of the
        last change."""
        return (visit - 1) / (visit + 2) if self.momentum else 0.0
