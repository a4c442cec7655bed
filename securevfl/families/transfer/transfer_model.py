"""Two networks that are trained to agree on the rows two parties share, and to tell the labels of one of them.

Secure Federated Transfer Learning (Liu et al. 2018), section 3. Each party maps its own columns to d numbers a row, its
representation u; labels of the one (the guest) travel through the other's (the host's): f(x^B) = Phi u^B, where Phi is
the mean of y u^A. `securevfl.families.transfer.taylor` has the objective.
"""

from __future__ import annotations

import itertools
from typing import ClassVar

from pydantic import Field

from securevfl.base.arrays import Floats
from securevfl.families.transfer import taylor
from securevfl.families.transfer.dense_network import DenseNetwork
from securevfl.models.base import Model
from securevfl.models.loss import Loss
from securevfl.models.losses import LOSSES


class Transfer(Model):
    """The networks of both parties, of dense layers with tanh. `l2` spares the offsets."""

    name: ClassVar[str] = "transfer"
    family: ClassVar[str | None] = "transfer"
    static_jacobian: ClassVar[bool] = False
    shares_outputs: ClassVar[bool] = False
    units: int = Field(default=16, ge=1)
    """Width of the last layer, which is the representation (d)."""
    hidden: tuple[int, ...] = ()
    """Widths of the layers before it."""
    gamma: float = Field(default=0.05, ge=0)
    """Weight of the squared distance of a row's two representations."""
    linearised: bool = False
    """Local steps take both networks as linear in their weights around an exchange, so one opening serves them all."""

    @property
    def loss(self) -> Loss:
        """The loss by which scores are judged."""
        return LOSSES["logistic"]

    @property
    def residual_bound(self) -> float:
        """What no number that is sealed exceeds: tanh is below 1."""
        return taylor.largest_entry(1.0, self.gamma)

    def openings(self, steps: int) -> int:
        return 1 if self.linearised else steps

    def moments(self, steps: int) -> int:
        """How many numbers each party shows the other in an exchange for so many local steps, beside what is opened."""
        return self.units * (self.units + 1) // 2 if self.linearised and steps > 1 else 0

    def widths(self, columns: int) -> tuple[int, ...]:
        """Return the widths of all layers, that of the columns first."""
        return (columns, *self.hidden, self.units)

    def parameters(self, columns: int, outputs: int) -> int:
        widths = self.widths(columns)
        return sum((a + 1) * b for a, b in itertools.pairwise(widths))

    def build(self, columns: int, theta: Floats | None) -> DenseNetwork:
        """Build a party's network, with these weights or with none yet."""
        return DenseNetwork(self.widths(columns), self.l2, theta)
