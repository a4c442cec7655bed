"""The model of transfer learning: two networks that agree on overlapping rows and predict the labels of one party.

Secure Federated Transfer Learning (Liu et al. 2018), section 3. The guest has the labels y, the host has none. The
network of each party maps a row's columns x to a representation u of d numbers. The host's row x^B is predicted by
f(x^B) = Phi u^B, where Phi is the mean of y u^A over the guest's labelled rows. `securevfl.families.transfer.taylor`
contains the objective. In an exchange, each party sends one vector; each then takes one or more local steps, updates of
its weights.
"""

from __future__ import annotations

import itertools
from typing import Annotated, ClassVar

from pydantic import Field

from securevfl.base.arrays import Floats
from securevfl.families.transfer import taylor
from securevfl.families.transfer.dense_network import DenseNetwork
from securevfl.models.base import Model
from securevfl.models.loss import Loss
from securevfl.models.losses import LOSSES


class Transfer(Model):
    """The dense networks with tanh of both parties. `l2` does not apply to offsets."""

    name: ClassVar[str] = "transfer"
    family: ClassVar[str | None] = "transfer"
    static_jacobian: ClassVar[bool] = False
    shares_outputs: ClassVar[bool] = False
    units: int = Field(default=16, ge=1, le=65_536)
    """d, width of the last layer, which is the representation."""
    hidden: tuple[Annotated[int, Field(ge=1, le=65_536)], ...] = Field(default=(), max_length=16)
    """Widths of the hidden layers."""
    gamma: float = Field(default=0.05, ge=0, le=1e12)
    """Weight of the squared distance between the two representations of a row."""
    linearised: bool = False
    """Linearise both networks in their weights at each exchange, so that one decrypted gradient is enough for all local
    steps."""

    @property
    def loss(self) -> Loss:
        """The loss that evaluations of the model report."""
        return LOSSES["logistic"]

    @property
    def residual_bound(self) -> float:
        """An upper bound of the absolute value of all encrypted numbers; tanh is below 1."""
        return taylor.largest_entry(1.0, self.gamma)

    def openings(self, steps: int) -> int:
        """Return how many gradients are decrypted in an exchange with `steps` local steps."""
        return 1 if self.linearised else steps

    def moments(self, steps: int) -> int:
        """Return how many numbers of second moments each party sends in an exchange with `steps` local steps."""
        return self.units * (self.units + 1) // 2 if self.linearised and steps > 1 else 0

    def widths(self, columns: int) -> tuple[int, ...]:
        """Return the widths of all layers, beginning with the number of columns."""
        return (columns, *self.hidden, self.units)

    def parameters(self, columns: int, outputs: int) -> int:
        """Return p, the number of weights in the network of a party with `columns` columns."""
        widths = self.widths(columns)
        return sum((a + 1) * b for a, b in itertools.pairwise(widths))

    def build(self, columns: int, theta: Floats | None) -> DenseNetwork:
        """Build a party's network with the weights `theta` (p,); with zeros if `theta` is None."""
        return DenseNetwork(self.widths(columns), self.l2, theta)
