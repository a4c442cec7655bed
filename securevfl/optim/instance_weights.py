"""Instance weighting: how far a row of an exchange still counts in a local step (CELU-VFL 2022, section 4).

What was exchanged grows stale while the weights move. Each row is weighed by the angle between a vector as it was
exchanged and as it would be now: its forward outputs at a passive party, its derivatives at the active party.

    w_i = cos(then_i, now_i) where that is at least cos xi, else 0

A weighted gradient is J^T (w g) = (w J)^T g, with row i times w_i. So a party that only holds g under encryption
multiplies it by a J of which it has scaled the rows.
"""

from __future__ import annotations

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import ChunkedMatrix, LocalPart, RowSource, materialize
from securevfl.protocols.differentiable import Differentiable, Jacobian


def cosines(then: Floats, now: Floats, xi: float) -> Floats:
    """w (n,) of rows (n x k) as they were and as they are, for an angle xi in degrees.

    Rows of zeros have no direction: two of them count in full, one beside another row not at all. Of one number a row
    the cosine is exactly 1 or -1.
    """
    if then.shape[1] == 1:
        then, now = np.sign(then), np.sign(now)
    lengths = np.sqrt(_products(then, then)) * np.sqrt(_products(now, now))
    flat = lengths == 0
    w = _products(then, now) / np.where(flat, 1.0, lengths)
    w[flat] = np.where(then[flat].any(axis=1) | now[flat].any(axis=1), 0.0, 1.0)
    return np.where(w >= np.cos(np.radians(xi)), np.minimum(w, 1.0), 0.0)


def _products(a: Floats, b: Floats) -> Floats:
    """Row by row, the inner products (n,) of two arrays (n x k)."""
    return np.einsum("ij,ij->i", a, b)


class WeightedModel:
    """A party's model with each row of a batch weighed, as a residual protocol sees it.

    Its Jacobian counts as one that moves, as other weights make another one.
    """

    static_jacobian = False

    def __init__(self, model: Differentiable, weights: Floats) -> None:
        """weights (n,) of the rows of the batch that it will be asked about."""
        self.shares_outputs = model.shares_outputs
        self._model = model
        self._weights = weights

    @property
    def parameters(self) -> int:
        """The number p of weights, as in the model that is weighed."""
        return self._model.parameters

    def rows(self, X: Floats) -> int:
        """Return n, as in the model that is weighed."""
        return self._model.rows(X)

    def vjp(self, X: Floats, g: Floats) -> Floats:
        """J^T (w g) for plain g (n x c)."""
        return self._model.vjp(X, self._weights[:, None] * g)

    def jacobian(self, X: Floats) -> Jacobian:
        """J on the rows X, each times its weight."""
        J = self._model.jacobian(X)
        return Jacobian(_scaled(J, np.repeat(self._weights, J.matrix.shape[0] // len(X))), J.shares_outputs)


def _scaled(J: Jacobian, weights: Floats) -> Floats | ChunkedMatrix:
    """Return the matrix of J with row i times weights_i, in the form in which J is read: as a whole, or row by row when
    it is asked for."""
    match J.matrix:
        case ChunkedMatrix(parts=(LocalPart() as only,)):
            return materialize(WeightedRows(only.chunk.rows, weights))
        case _:
            return weights[:, None] * J.dense


class WeightedRows:
    """Rows (n x d) that are scaled when they are read."""

    def __init__(self, rows: RowSource, weights: Floats) -> None:
        self._rows, self._weights = rows, weights

    @property
    def shape(self) -> tuple[int, ...]:
        """The numbers of rows and columns of the matrix, n and d."""
        return self._rows.shape

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: slice, /) -> Floats:
        return self._weights[rows, None] * self._rows[rows]
