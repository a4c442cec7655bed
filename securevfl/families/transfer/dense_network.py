"""Dense networks with tanh, and the derivatives of their outputs with respect to the weights.

The outputs U (n, d) of the last layer are called representations; its d outputs are called units. theta (p,) are the
weights. A derivative matrix has n * d rows, unit by unit: row j * n + i belongs to unit j of row i.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import SparseRows
from securevfl.base.normal_distribution import normal_quantile
from securevfl.models.inputs import private_stream


class DenseNetwork:
    """A network of dense layers, each followed by tanh.

    Args:
        widths: widths of all layers, beginning with the number of columns.
        l2: weight decay; it does not apply to offsets.
        theta: weights (p,); zeros if None. They contain, for each layer with a inputs and b outputs, a matrix (b, a +
            1) whose last column is the offset.
    """

    def __init__(self, widths: tuple[int, ...], l2: float, theta: Floats | None) -> None:
        self._shapes = [(b, a + 1) for a, b in itertools.pairwise(widths)]
        ends = np.cumsum([0, *(b * a for b, a in self._shapes)]).tolist()
        self._slices = [slice(start, stop) for start, stop in itertools.pairwise(ends)]
        self._decays = np.concatenate([np.tile([l2] * (a - 1) + [0.0], b) for b, a in self._shapes])
        self.theta: Floats = np.zeros(ends[-1]) if theta is None else theta

    @property
    def parameters(self) -> int:
        """p, number of weights."""
        return len(self.theta)

    def start(self, X: Floats, seed: int) -> None:
        """Draw the weights (Glorot and Bengio 2010) from a hash of the party's columns and the seed.

        No other party can compute them, and the same data and seed give the same network.

        Args:
            X: the party's scaled columns (m, d).
            seed: seed of the job.
        """
        stream = private_stream(f"network {seed} {self._shapes}", X)
        integers = np.frombuffer(stream(8 * self.parameters), "<u8") >> 11
        theta = normal_quantile((integers + 0.5) * 2.0**-53)
        for layer, (b, a) in zip(self._slices, self._shapes, strict=True):
            theta[layer] *= np.sqrt(2.0 / (a - 1 + b))
            theta[layer].reshape(b, a)[:, -1] = 0.0
        self.theta = theta

    def regularised(self, gradient: Floats) -> Floats:
        """Return the gradient (p,) of the objective: that of the loss plus that of the penalty."""
        return gradient + self._decays * self.theta

    def forward(self, X: Floats) -> Floats:
        """Return the representations U (n, d) of rows."""
        return self._activations(X)[-1]

    def vjp(self, X: Floats, V: Floats) -> Floats:
        """Return the derivative by theta (p,) of the sum of all V_ij * U_ij."""
        activations = self._activations(X)
        gradient = np.empty(self.parameters)
        delta = V * (1 - activations[-1] ** 2)
        for layer in reversed(range(len(self._shapes))):
            gradient[self._slices[layer]] = (delta.T @ _with_ones(activations[layer])).ravel()
            if layer:
                delta = (delta @ self._weights(layer)[:, :-1]) * (1 - activations[layer] ** 2)
        return gradient

    def derivatives(self, X: Floats) -> SparseRows:
        """Return the derivatives of all U_ij by theta (n * d, p): row j * n + i for unit j of row i."""
        return NetworkJacobian(self._activations(X), [self._weights(layer) for layer in range(len(self._shapes))])

    def _weights(self, layer: int) -> Floats:
        return self.theta[self._slices[layer]].reshape(self._shapes[layer])

    def _activations(self, X: Floats) -> list[Floats]:
        """Return X and the output of each layer."""
        activations = [X]
        for layer in range(len(self._shapes)):
            activations.append(np.tanh(_with_ones(activations[-1]) @ self._weights(layer).T))
        return activations


class NetworkJacobian(SparseRows):
    """The derivatives of every representation with respect to the weights, computed when they are read.

    A weight of the last layer affects one unit only. In the rows of that unit, the columns of all others are zero and
    are omitted.

    Args:
        activations: X and the output of each layer.
        weights: the weight matrix of each layer.
    """

    def __init__(self, activations: list[Floats], weights: list[Floats]) -> None:
        self._activations = activations
        self._weights = weights
        self._n, self._d = activations[-1].shape
        self._hidden_weights = sum(W.size for W in weights[:-1])

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (n * d, p)."""
        return self._n * self._d, self._hidden_weights + self._weights[-1].size

    def part(self, start: int, stop: int) -> tuple[NDArray[np.intp], Floats]:
        """Return the columns (weights) in which rows start to stop - 1 may have non-zero entries, and the entries."""
        n, width, columns = self._n, self._weights[-1].shape[1], self.columns(start, stop)
        values = np.zeros((stop - start, len(columns)))
        for position, j in enumerate(self._units(start, stop)):
            rows = slice(max(start - j * n, 0), min(stop - j * n, n))
            target = slice(j * n + rows.start - start, j * n + rows.stop - start)
            self._write_unit(j, rows, values[target], self._hidden_weights + position * width)
        return columns, values

    def columns(self, start: int, stop: int) -> NDArray[np.intp]:
        """Return the columns (weights) in which rows start to stop - 1 may have non-zero entries."""
        width, units = self._weights[-1].shape[1], self._units(start, stop)
        last_layer = self._hidden_weights + np.arange(units.start * width, units.stop * width)
        return np.concatenate([np.arange(self._hidden_weights), last_layer])

    def _units(self, start: int, stop: int) -> range:
        """Return the numbers of the units to which rows start to stop - 1 belong."""
        return range(start // self._n, -(-stop // self._n))

    def _write_unit(self, j: int, rows: slice, out: Floats, first_column: int) -> None:
        """Write the derivatives of unit j into `out`; its weights of the last layer begin at `first_column`."""
        activations, last = [values[rows] for values in self._activations], self._weights[-1][j]
        slope = 1 - activations[-1][:, j] ** 2
        out[:, first_column : first_column + len(last)] = slope[:, None] * _with_ones(activations[-2])
        delta, stop = slope[:, None] * last[:-1], self._hidden_weights
        for layer in reversed(range(len(self._weights) - 1)):
            delta = delta * (1 - activations[layer + 1] ** 2)
            start = stop - self._weights[layer].size
            out[:, start:stop] = (delta[:, :, None] * _with_ones(activations[layer])[:, None, :]).reshape(len(out), -1)
            delta, stop = delta @ self._weights[layer][:, :-1], start


def _with_ones(X: Floats) -> Floats:
    return np.column_stack([X, np.ones(len(X))])
