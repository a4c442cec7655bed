"""Instance weighting: the weight of each row in a local step on an earlier exchange (CELU-VFL 2022, section 4).

Exchanged values become stale while the weights of the model change. Each row is weighed by the angle between a vector
at the exchange and the same vector now: its outputs at a passive party, its derivatives at the active party (the one
with labels).

    w_i = cos(vector of row i at the exchange, vector now) if that is at least cos(xi), otherwise 0

With the residual g and the Jacobian J, a weighted gradient is J^T (w * g) = (w * J)^T g, where row i is multiplied by
w_i. A party that has g only encrypted therefore multiplies it by a J with scaled rows.
"""

from __future__ import annotations

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import ChunkedMatrix, LocalPart, RowSource, materialize
from securevfl.protocols.differentiable import Differentiable, Jacobian


def cosines(then: Floats, now: Floats, xi: float) -> Floats:
    """Return the weights w (n,) of rows by the cosine of the angle between their earlier and current vectors.

    A row of zeros has no direction: the weight is 1 if both vectors are 0, and 0 if only one is. If k = 1, the cosine
    is exactly 1 or -1.

    Args:
        then: the vectors at the exchange (n, k).
        now: the current vectors (n, k).
        xi: maximum angle in degrees.

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
    """Return the inner products (n,) of the rows of two arrays (n, k)."""
    return np.einsum("ij,ij->i", a, b)


class WeightedModel:
    """A party's model with weighed rows, in the form that a residual protocol expects.

    Its Jacobian counts as variable, because it depends on the weights of the rows.

    Args:
        model: the party's model, without row weights.
        weights: weights (n,) of the rows of the batch.
    """

    static_jacobian = False

    def __init__(self, model: Differentiable, weights: Floats) -> None:
        self.shares_outputs = model.shares_outputs
        self._model = model
        self._weights = weights

    @property
    def parameters(self) -> int:
        """The number of weights of the model."""
        return self._model.parameters

    def rows(self, X: Floats) -> int:
        """Return n, the number of rows of g."""
        return self._model.rows(X)

    def vjp(self, X: Floats, g: Floats) -> Floats:
        """Return J^T (w * g) for an unencrypted g (n, c)."""
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
    """Rows (n, d) that are multiplied by their weights when they are read."""

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
