"""The top model: the active party applies a module to the outputs of all parties (CELU-VFL 2022, Figure 1 (?)).

The active party has the labels; K passive parties have w outputs each.

    passive party k    outputs Z_k = module_k(X_k) (n, w)
    active party       computes f = module(X, Z) (n, c) from its rows X and from Z = (Z_1, ..., Z_K), and the loss L;
                       sends back dL/dZ_k, clipped to an agreed bound, because encryption needs a bound
A slot is the range of w columns that belongs to one passive party. Each passive party sends K * w columns with zeros
outside its slot, and these vectors are added up, so every protocol for sums and residuals applies unchanged; with two
parties there is only one slot. The sum hides no Z_k from the active party. With more than one passive party, a party
that receives its residual in the clear also sees the residuals of the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.models.torch_model import TorchModel, torch

if TYPE_CHECKING:
    from torch import Tensor
if TYPE_CHECKING:
    from torch import Tensor
from securevfl.models.torch_block import TorchBlock


class TorchTop(TorchBlock):
    """The active party's module; its inputs are the party's rows (n, d) and the others' outputs (n, K * w)."""

    def __init__(
        self, party: str, source: TorchModel, columns: int, outputs: int, *, l2: float, fed: int, bound: float
    ) -> None:
        super().__init__(party, source, columns, outputs, l2=l2, fed=fed)
        self._bound = bound

    def combine(self, X: Floats, others: Floats) -> Floats:
        """Return f (n, c) from the rows and the outputs of the others."""
        return self._values(X, others)

    def gradient(self, X: Floats, others: Floats, g: Floats) -> Floats:
        """Return the gradient by the weights (p,), from g (n, c), the derivative of the loss by f."""
        with self._lock:
            return np.sum([trace.backward(g_rows, trace.flat) for trace, g_rows in self._traced(g, X, others)], axis=0)

    def output_gradient(self, X: Floats, others: Floats, g: Floats) -> Floats:
        """Return dL/dZ (n, K * w), the derivative of the loss by the others' outputs, clipped to the agreed bound."""
        with self._lock:
            by_fed = [trace.backward(g_rows, trace.fed[0]) for trace, g_rows in self._traced(g, X, others)]
            return np.concatenate(by_fed).clip(-self._bound, self._bound)


class TorchBottom(TorchBlock):
    """A passive party's module below a top model: its w outputs fill slot `index` of K = `slots` slots."""

    def __init__(
        self, party: str, source: TorchModel, columns: int, width: int, *, l2: float, index: int, slots: int
    ) -> None:
        super().__init__(party, source, columns, width, l2=l2)
        self._slot, self._width = slice(index * width, (index + 1) * width), slots * width

    @property
    def outputs(self) -> int:
        """The number of columns of the outputs, K * w."""
        return self._width

    def forward(self, X: Floats) -> Floats:
        """Return the outputs (n, K * w), with zeros outside this party's slot."""
        Z = np.zeros((len(X), self._width))
        Z[:, self._slot] = super().forward(X)
        return Z

    def vjp(self, X: Floats, g: Floats) -> Floats:
        """Return J^T g (p,), summed over the rows."""
        return super().vjp(X, np.ascontiguousarray(g[:, self._slot]))

    def rows_of_jacobian(self, theta: Floats, X: Floats) -> Floats:
        """Return the Jacobian (n * K * w, p) of rows X at weights theta."""
        w = self._slot.stop - self._slot.start
        J = np.zeros((len(X), self._width, len(theta)))
        J[:, self._slot] = super().rows_of_jacobian(theta, X).reshape(len(X), w, -1)
        return J.reshape(len(X) * self._width, -1)


def default_top(columns: int, fed: int, outputs: int) -> Any:
    """Return the top model of a party without a module: one dense layer over its columns and the others' outputs."""
    nn = torch().nn

    class Concatenated(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.top = nn.Linear(columns + fed, outputs, dtype=torch().float64)

        def forward(self, x: Tensor, z: Tensor) -> Any:
            return self.top(torch().cat([x, z], dim=1))

    return Concatenated()
