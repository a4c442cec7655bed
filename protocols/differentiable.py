"""What a residual protocol needs of a model: J^T g in the clear, or J itself and which parameters it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import ChunkedMatrix, RowChunk


@dataclass(frozen=True)
class Jacobian:
    """How a party's forward outputs H (n x c) move with its parameters on one batch.

    shares_outputs   `matrix` (n x d) serves each of the c outputs, and each has d parameters of its own, as in a linear
                     model: dH_ij / dtheta_kl is matrix_ik where j = l, and 0 elsewhere. J^T g is (d x c).
    otherwise        `matrix` is (n c x p), in row i c + j the derivatives of H_ij by all p parameters. J^T g is (p,).
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
        """J^T g for plain g (n x c)."""
        return self.matrix.T @ g if self.shares_outputs else (self.matrix.T @ g.reshape(-1, 1))[:, 0]


def _rows(stretch: RowChunk) -> Floats:
    return np.concatenate([block for _, block in stretch.blocks()])


class Differentiable(Protocol):
    """A party's model as a residual protocol sees it.

    static_jacobian: J does not move with the parameters. shares_outputs: of which kind its Jacobians are. parameters:
    p, how many numbers a gradient of it has.
    """

    static_jacobian: bool
    shares_outputs: bool

    @property
    def parameters(self) -> int: ...

    def rows(self, X: Floats) -> int:
        """Return n, how many rows g has for the rows X."""

    def vjp(self, X: Floats, g: Floats) -> Floats:
        """J^T g for plain g (n x c), in the shape of the parameters."""

    def jacobian(self, X: Floats) -> Jacobian:
        """J on the rows X."""


class FixedJacobian:
    """A model whose Jacobian is what it is handed."""

    static_jacobian = True
    shares_outputs = True
    parameters = 0  # as many as X has columns

    def rows(self, X: Floats) -> int:
        return len(X)

    def vjp(self, X: Floats, g: Floats) -> Floats:
        return Jacobian(X).vjp(g)

    def jacobian(self, X: Floats) -> Jacobian:
        return Jacobian(X)
