"""Instance weighting: the weight of a row of an earlier exchange in a local step (CELU-VFL 2022, section 4).

Exchanged values become stale while the weights of the model change. Each row is weighed by the angle between a vector
at the exchange and the same vector now: its forward outputs at a passive party, its derivatives at the active party.

    w_i = cos(then_i, now_i) if that is at least cos xi, otherwise 0

A weighted gradient is J^T (w g) = (w J)^T g, with row i multiplied by w_i. A party that only has g encrypted therefore
multiplies it by a J with scaled rows.
"""

from __future__ import annotations

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import ChunkedMatrix, LocalPart, RowSource, materialize
from securevfl.protocols.differentiable import Differentiable, Jacobian


def cosines(then: Floats, now: Floats, xi: float) -> Floats:
    """Return the weights w (n,) of some rows.

    A row of zeros has no direction: the weight is 1 if both rows are 0, and 0 if only one is. If k = 1, the cosine is
    exactly 1 or -1.

    Args:
        then: the rows at the exchange (n x k).
        now: the current rows (n x k).
        xi: largest angle in degrees.

    Returns:
        The weights.
    """
    if then.shape[1] == 1:
        then, now = np.sign(then), np.sign(now)
    lengths = np.sqrt(_products(then, then)) * np.sqrt(_products(now, now))
    flat = lengths == 0
    w = _products(then, now) / np.where(flat, 1.0, lengths)
    w[flat] = np.where(then[flat].any(axis=1) | now[flat].any(axis=1), 0.0, 1.0)
    return np.where(w >= np.cos(np.radians(xi)), np.minimum(w, 1.0), 0.0)


def _products(a: Floats, b: Floats) -> Floats:
    """Return the inner products (n,) of the rows of two arrays (n x k)."""
    return np.einsum("ij,ij->i", a, b)


class WeightedModel:
    """A party's model with weighed rows of a batch, as a residual protocol uses it.

    Its Jacobian counts as variable, because it depends on the weights of the rows.

    Args:
        model: the model.
        weights: weights (n,) of the rows of the batch.
    """

    static_jacobian = False

    def __init__(self, model: Differentiable, weights: Floats) -> None:
        self.shares_outputs = model.shares_outputs
        self._model = model
        self._weights = weights

    @property
    def parameters(self) -> int:
        """p, the number of parameters of the model."""
        return self._model.parameters

    def rows(self, X: Floats) -> int:
        """Return n, the number of rows of g."""
        return self._model.rows(X)

    def vjp(self, X: Floats, g: Floats) -> Floats:
        """Return J^T (w g) for plain g (n x c)."""
        return self._model.vjp(X, self._weights[:, None] * g)

    def jacobian(self, X: Floats) -> Jacobian:
        """Return J on the rows X, each multiplied by its weight."""
        J = self._model.jacobian(X)
        return Jacobian(_scaled(J, np.repeat(self._weights, J.matrix.shape[0] // len(X))), J.shares_outputs)


def _scaled(J: Jacobian, weights: Floats) -> Floats | ChunkedMatrix:
    """Return the matrix of J with row i multiplied by weights_i, in memory or as a matrix that is read row by row."""
    match J.matrix:
        case ChunkedMatrix(parts=(LocalPart() as part,)):
            return materialize(WeightedRows(part.chunk.rows, weights))
        case _:
            return weights[:, None] * J.dense


class WeightedRows:
    """Rows (n x d) that are scaled when they are read."""

    def __init__(self, rows: RowSource, weights: Floats) -> None:
        self._rows, self._weights = rows, weights

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape (n, d) of the matrix."""
        return self._rows.shape

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: slice, /) -> Floats:
        return self._weights[rows, None] * self._rows[rows]
