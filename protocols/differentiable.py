"""What a residual protocol needs of a model: J^T g in the clear, or the Jacobian J and the parameters it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import ChunkedMatrix, RowChunk


@dataclass(frozen=True)
class Jacobian:
    """The derivatives of a party's forward outputs H (n x c) by its parameters on one batch.

    Attributes:
        matrix: (n x d) if `shares_outputs`, otherwise (n c x p) with the derivatives of H_ij by all p parameters in row
            i c + j.
        shares_outputs: each of the c outputs has d parameters and the same matrix, as in a linear model:
            dH_ij / dtheta_kl is matrix_ik if j = l, and 0 otherwise. J^T g is (d x c) then, and (p,) otherwise.
    """

    matrix: Floats | ChunkedMatrix
    shares_outputs: bool = True

    @property
    def dense(self) -> Floats:
        """The matrix with all its rows in memory."""
        if not isinstance(self.matrix, ChunkedMatrix):
            return self.matrix
        return np.concatenate([part.run(_rows).result() for part in self.matrix.parts])

    def vjp(self, g: Floats) -> Floats:
        """Return J^T g for plain g (n x c)."""
        return self.matrix.T @ g if self.shares_outputs else (self.matrix.T @ g.reshape(-1, 1))[:, 0]


def _rows(stretch: RowChunk) -> Floats:
    return np.concatenate([block for _, block in stretch.blocks()])


class Differentiable(Protocol):
    """A party's model as a residual protocol uses it.

    Attributes:
        static_jacobian: whether J is independent of the parameters.
        shares_outputs: the kind of its Jacobians; see `Jacobian`.
    """

    static_jacobian: bool
    shares_outputs: bool

    @property
    def parameters(self) -> int:
        """p, the number of values of a gradient."""
        ...

    def rows(self, X: Floats) -> int:
        """Return n, the number of rows of g for the rows X."""

    def vjp(self, X: Floats, g: Floats) -> Floats:
        """Return J^T g for plain g (n x c), in the shape of the parameters."""

    def jacobian(self, X: Floats) -> Jacobian:
        """Return J on the rows X."""


class FixedJacobian:
    """A model whose Jacobian is the matrix X itself."""

    static_jacobian = True
    shares_outputs = True
    parameters = 0  # unused; the number of columns of X

    def rows(self, X: Floats) -> int:
        """Return the number of rows of X."""
        return len(X)

    def vjp(self, X: Floats, g: Floats) -> Floats:
        """Return X^T g."""
        return Jacobian(X).vjp(g)

    def jacobian(self, X: Floats) -> Jacobian:
        """Return X as a Jacobian."""
        return Jacobian(X)
