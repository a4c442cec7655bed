"""The interface of a party's model part that residual protocols use to compute its gradient.

A party's forward outputs on a batch are H (n, c), for n rows and c model outputs per row. The residual g (n, c) is the
derivative of the loss by the outputs. The Jacobian J is the derivative of H by the party's parameters, and the gradient
is J^T g, a vector-Jacobian product ("vjp"). If g is encrypted, the protocol needs J itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import ChunkedMatrix, RowChunk


@dataclass(frozen=True)
class Jacobian:
    """The derivatives of a party's forward outputs H (n, c) by its parameters on one batch.

    Attributes:
        matrix: shape (n, d) if `shares_outputs`. Otherwise (n * c, p) for p parameters; row i * c + j contains the
            derivatives of H[i, j].
        shares_outputs: True for a linear model with parameters theta (d, c): H = matrix @ theta, so all outputs use the
            same matrix, and J^T g has the shape (d, c). False for other models, for which J^T g has the shape (p,).
    """

    matrix: Floats | ChunkedMatrix
    shares_outputs: bool = True

    @property
    def dense(self) -> Floats:
        """The matrix as one array in memory, even if its rows are stored by several processes."""
        if not isinstance(self.matrix, ChunkedMatrix):
            return self.matrix
        return np.concatenate([part.run(_rows).result() for part in self.matrix.parts])

    def vjp(self, g: Floats) -> Floats:
        """Return the gradient J^T g for an unencrypted residual g (n, c)."""
        return self.matrix.T @ g if self.shares_outputs else (self.matrix.T @ g.reshape(-1, 1))[:, 0]


def _rows(chunk: RowChunk) -> Floats:
    return np.concatenate([block for _, block in chunk.blocks()])


class Differentiable(Protocol):
    """The interface of a party's model part for residual protocols.

    Attributes:
        static_jacobian: whether J is independent of the parameters, as in a linear model.
        shares_outputs: whether all outputs use the same matrix; see `Jacobian`.
    """

    static_jacobian: bool
    shares_outputs: bool

    @property
    def parameters(self) -> int:
        """The number of parameters, which is the number of values of a gradient."""
        ...

    def rows(self, X: Floats) -> int:
        """Return the number of rows of the residual for the rows X of the table."""

    def vjp(self, X: Floats, g: Floats) -> Floats:
        """Return the gradient J^T g for an unencrypted residual g (n, c), in the shape of the parameters."""

    def jacobian(self, X: Floats) -> Jacobian:
        """Return the Jacobian J: the derivatives of the outputs on rows X by the parameters."""


class FixedJacobian:
    """A linear model without parameters in memory: its Jacobian is the matrix X, and its gradient X^T g."""

    static_jacobian = True
    shares_outputs = True
    parameters = 0  # no protocol reads it, because the number of columns of X differs from call to call

    def rows(self, X: Floats) -> int:
        """Return the number of rows of X, because the residual has one row for each."""
        return len(X)

    def vjp(self, X: Floats, g: Floats) -> Floats:
        """Return X^T g."""
        return Jacobian(X).vjp(g)

    def jacobian(self, X: Floats) -> Jacobian:
        """Return X as a Jacobian."""
        return Jacobian(X)
