"""Blocks of weights: each party holds one, and the outputs of all blocks are added up."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from securevfl.base.arrays import Floats
from securevfl.models.base import Model
from securevfl.protocols.differentiable import Jacobian


@dataclass(frozen=True)
class Place:
    """The place of a block of weights: its party and whether that has the labels, d columns, c outputs, the party's own
    module, and which of how many passive parties it is."""

    who: str
    active: bool
    columns: int
    outputs: int
    model: object = field(default=None, repr=False)
    passives: int = 1
    place: int = 0  # among the passive parties


class Block(ABC):
    """One party's block of weights, theta, of any shape, `securevfl.protocols.differentiable.Differentiable`; its
    outputs are added to the others': f = sum_k H_k (FedBCD 2019, eq. 2)."""

    static_jacobian: bool
    shares_outputs: bool
    theta: Floats

    @property
    def parameters(self) -> int:
        """The number p of weights, an intercept included."""
        return int(self.theta.size)

    @abstractmethod
    def start(self, X: Floats, scaled: Floats, targets: Floats | None, seed: int) -> None:
        """Draws the weights to begin from, if they are drawn: from some of its own rows X (m x d), and as scaled, the
        targets (n x c) of a party with labels, and the job's seed. The same of these give the same weights."""

    @abstractmethod
    def forward(self, X: Floats) -> Floats:
        """H (n x c)."""

    @abstractmethod
    def vjp(self, X: Floats, g: Floats) -> Floats:
        """J^T g for plain g (n x c), summed over the rows, in the shape of the parameters."""

    @abstractmethod
    def jacobian(self, X: Floats) -> Jacobian:
        """J on the rows X, at the weights as they are."""

    def rows(self, X: Floats) -> int:
        """Return n: g has a row for each of X."""
        return len(X)

    def combine(self, X: Floats, others: Floats) -> Floats:
        """f (n x c), of its own rows and of what the others' outputs were collected to; at the active party."""
        return self.forward(X) + others

    def gradient(self, X: Floats, others: Floats, g: Floats) -> Floats:
        """Return the gradient by its own weights, in their shape, from g = df (n x c); at the active party."""
        return self.vjp(X, g)

    def output_gradient(self, X: Floats, others: Floats, g: Floats) -> Floats:
        """Return the residual that goes down, in the shape of what was collected from the others; at the active party.
        The derivative by any summand is that by f."""
        return g

    @abstractmethod
    def regularised(self, gradient: Floats) -> Floats:
        """Add the gradient of the penalty to that of the mean loss, which gives the gradient of the objective."""

    def state(self) -> dict[str, Any]:
        """All that is kept of it, theta by this name."""
        return {"theta": self.theta}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        self.theta = state["theta"]


class BlockModel(Model):
    """A model that every party has a block of weights of."""

    def collected_width(self, outputs: int, passives: int) -> int:
        """How many numbers a row are collected of all passive parties together, for f with c outputs."""
        return outputs

    @abstractmethod
    def build(self, place: Place) -> Block:
        """Build a party's own block. Raises ConfigError if what it brings cannot be used."""
