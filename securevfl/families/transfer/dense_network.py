"""Dense networks with tanh, and their derivatives by the weights."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import SparseRows
from securevfl.base.normal_distribution import normal_quantile
from securevfl.models.inputs import private_stream


class DenseNetwork:
    """Dense layers with tanh. theta (p,) holds, layer by layer, the weights (b x a + 1), the offset last."""

    def __init__(self, widths: tuple[int, ...], l2: float, theta: Floats | None) -> None:
        self._shapes = [(b, a + 1) for a, b in itertools.pairwise(widths)]
        ends = np.cumsum([0, *(b * a for b, a in self._shapes)]).tolist()
        self._places = [slice(start, stop) for start, stop in itertools.pairwise(ends)]
        self._decays = np.concatenate([np.tile([l2] * (a - 1) + [0.0], b) for b, a in self._shapes])
        self.theta: Floats = np.zeros(ends[-1]) if theta is None else theta

    @property
    def parameters(self) -> int:
        """The number p of weights in the network."""
        return len(self.theta)

    def start(self, X: Floats, seed: int) -> None:
        """Draws the weights from a hash of the party's own columns X (m x d), by Glorot and Bengio 2010.

        Nobody else can compute them, and the same data and seed give the same network.
        """
        stream = private_stream(f"network {seed} {self._shapes}", X)
        whole = np.frombuffer(stream(8 * self.parameters), "<u8") >> 11
        drawn = normal_quantile((whole + 0.5) * 2.0**-53)
        for place, (b, a) in zip(self._places, self._shapes, strict=True):
            drawn[place] *= np.sqrt(2.0 / (a - 1 + b))
            drawn[place].reshape(b, a)[:, -1] = 0.0
        self.theta = drawn

    def regularised(self, gradient: Floats) -> Floats:
        """Add the gradient of the penalty to that of the loss, which gives the gradient of the objective (p,)."""
        return gradient + self._decays * self.theta

    def forward(self, X: Floats) -> Floats:
        """U (n x d)."""
        return self._activations(X)[-1]

    def vjp(self, X: Floats, V: Floats) -> Floats:
        """sum_ij V_ij dU_ij / dtheta (p,)."""
        seen = self._activations(X)
        total = np.empty(self.parameters)
        delta = V * (1 - seen[-1] ** 2)
        for layer in reversed(range(len(self._shapes))):
            total[self._places[layer]] = (delta.T @ _with_ones(seen[layer])).ravel()
            if layer:
                delta = (delta @ self._weights(layer)[:, :-1]) * (1 - seen[layer] ** 2)
        return total

    def derivatives(self, X: Floats) -> SparseRows:
        """dU_ij / dtheta, unit by unit: row j n + i (n d x p)."""
        return NetworkJacobian(self._activations(X), [self._weights(layer) for layer in range(len(self._shapes))])

    def _weights(self, layer: int) -> Floats:
        return self.theta[self._places[layer]].reshape(self._shapes[layer])

    def _activations(self, X: Floats) -> list[Floats]:
        """X and what leaves each layer."""
        seen = [X]
        for layer in range(len(self._shapes)):
            seen.append(np.tanh(_with_ones(seen[-1]) @ self._weights(layer).T))
        return seen


class NetworkJacobian(SparseRows):
    """The derivatives of every representation by the parameters, made unit by unit when they are read.

    The weights of the last layer feed one unit each: in its rows the columns of all others are zero, and left out.
    """

    def __init__(self, seen: list[Floats], weights: list[Floats]) -> None:
        self._seen = seen
        self._weights = weights
        self._n, self._d = seen[-1].shape
        self._before = sum(W.size for W in weights[:-1])

    @property
    def shape(self) -> tuple[int, int]:
        return self._n * self._d, self._before + self._weights[-1].size

    def part(self, start: int, stop: int) -> tuple[NDArray[np.intp], Floats]:
        n, width, columns = self._n, self._weights[-1].shape[1], self.columns(start, stop)
        found = np.zeros((stop - start, len(columns)))
        for place, j in enumerate(self._units(start, stop)):
            rows = slice(max(start - j * n, 0), min(stop - j * n, n))
            at = slice(j * n + rows.start - start, j * n + rows.stop - start)
            self._unit(j, rows, found[at], self._before + place * width)
        return columns, found

    def columns(self, start: int, stop: int) -> NDArray[np.intp]:
        width, units = self._weights[-1].shape[1], self._units(start, stop)
        own = self._before + np.arange(units.start * width, units.stop * width)
        return np.concatenate([np.arange(self._before), own])

    def _units(self, start: int, stop: int) -> range:
        """Which representations these rows belong to."""
        return range(start // self._n, -(-stop // self._n))

    def _unit(self, j: int, rows: slice, out: Floats, own: int) -> None:
        """Write the derivatives of unit j on these rows into `out`; `own` is where the unit's weights of the last layer
        start."""
        seen, last = [each[rows] for each in self._seen], self._weights[-1][j]
        slope = 1 - seen[-1][:, j] ** 2
        out[:, own : own + len(last)] = slope[:, None] * _with_ones(seen[-2])
        delta, stop = slope[:, None] * last[:-1], self._before
        for layer in reversed(range(len(self._weights) - 1)):
            delta = delta * (1 - seen[layer + 1] ** 2)
            start = stop - self._weights[layer].size
            out[:, start:stop] = (delta[:, :, None] * _with_ones(seen[layer])[:, None, :]).reshape(len(out), -1)
            delta, stop = delta @ self._weights[layer][:, :-1], start


def _with_ones(X: Floats) -> Floats:
    return np.column_stack([X, np.ones(len(X))])
