"""Blocks of weights: a block is one party's weights. The outputs H of all parties' blocks add up to the model output f.

The active party has the labels, passive parties have none. f and the residual g, the derivative of the loss by f, have
the shape (n, c): n rows and c outputs. J is the Jacobian of a party's outputs by its weights theta.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from securevfl.base.arrays import Floats
from securevfl.models.base import Model
from securevfl.protocols.differentiable import Jacobian


@dataclass(frozen=True)
class BlockSpec:
    """The sizes and names that a party needs to create its weights.

    Attributes:
        party: name of the party.
        active: whether it has the labels.
        columns: the number of its columns, d.
        outputs: the number of outputs, c.
        model: the party's torch module, or None.
        passives: the number of passive parties.
        index: the position of this party among the passive ones, from 0.
    """

    party: str
    active: bool
    columns: int
    outputs: int
    model: object = field(default=None, repr=False)
    passives: int = 1
    index: int = 0


class Block(ABC):
    """One party's block of weights theta, of any shape (`securevfl.protocols.differentiable.Differentiable`).

    Its outputs are added to those of the other parties: f = sum_k H_k (FedBCD 2019, eq. 2).
    """

    static_jacobian: bool
    shares_outputs: bool
    theta: Floats

    @property
    def parameters(self) -> int:
        """The number p of weights, with the intercept."""
        return int(self.theta.size)

    @abstractmethod
    def start(self, X: Floats, scaled: Floats, targets: Floats | None, seed: int) -> None:
        """Set the initial weights. Equal arguments give equal weights.

        Args:
            X: some rows of the party (m, d).
            scaled: the same rows after scaling.
            targets: their targets (m, c) at the party with labels, otherwise None.
            seed: the seed of the job.
        """

    @abstractmethod
    def forward(self, X: Floats) -> Floats:
        """Return the outputs H (n, c) for rows X (n, d)."""

    @abstractmethod
    def vjp(self, X: Floats, g: Floats) -> Floats:
        """Return J^T g for an unencrypted g (n, c), summed over the rows, in the shape of the weights."""

    @abstractmethod
    def jacobian(self, X: Floats) -> Jacobian:
        """Return the Jacobian J on rows X (n, d) at the current weights."""

    def rows(self, X: Floats) -> int:
        """Return n, the number of rows of g; by default one for each row of X."""
        return len(X)

    def combine(self, X: Floats, others: Floats) -> Floats:
        """Return f (n, c) from the active party's rows X and the passive parties' collected outputs."""
        return self.forward(X) + others

    def gradient(self, X: Floats, others: Floats, g: Floats) -> Floats:
        """Return the gradient by the active party's weights, in their shape, from g (n, c)."""
        return self.vjp(X, g)

    def output_gradient(self, X: Floats, others: Floats, g: Floats) -> Floats:
        """Return the derivative of the loss by the collected outputs of the other parties, in their shape.

        If f is the sum of all outputs, this gradient equals g.
        """
        return g

    @abstractmethod
    def regularised(self, gradient: Floats) -> Floats:
        """Add the gradient of the l2 penalty to `gradient`, that of the mean loss."""

    def state(self) -> dict[str, Any]:
        """Return the arrays that store the block, by name."""
        return {"theta": self.theta}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the weights from the arrays that `state` returned."""
        self.theta = state["theta"]


class BlockModel(Model):
    """A model in which every party has a block of weights."""

    def collected_width(self, outputs: int, passives: int) -> int:
        """Return how many numbers for each row all passive parties send together, for c = `outputs`."""
        return outputs

    @abstractmethod
    def build(self, spec: BlockSpec) -> Block:
        """Build a party's block; raise ConfigError if its module cannot be used."""
