"""The objective of transfer learning with every unknown of the other party in it once, and linearly.

Secure Federated Transfer Learning (Liu et al. 2018), sections 3 and 4, on n overlapping rows, representations u_i^A,
u_i^B (d) and labels y_i in {-1, 1}, with Phi = mean of y_i u_i^A over the labelled rows of A:

    loss(theta) = 1/n sum_i [ log 2 - y_i Phi u_i^B / 2 + (Phi u_i^B)^2 / 8 + gamma |u_i^A - u_i^B|^2 ]

the first three terms being log(1 + exp(-y_i Phi u_i^B)) to second order about 0. As y_i^2 = 1, all that the host needs
of the guest is one vector, and all that the guest needs of the host another:

    guest -> host    b_i = -y_i Phi / 2 - 2 gamma u_i^A (n d numbers)    Phi^T Phi, upper half (d (d + 1) / 2)
    host -> guest    u_i^B (n d numbers)                                 sum_i u_i^B^T u_i^B / n, upper half

Every gradient by parameters is linear in these: J^T v for a matrix J that its owner makes of what it alone knows. So
the encrypted vector-Jacobian product serves transfer learning as it is. Existing code sends n (d^2 + 2 d) numbers.

A vector holds the numbers of representation 0 of all rows, then those of representation 1, and so on: the rows of J
that belong to a unit lie together, and a weight that feeds one unit has zeros in all other blocks. Rows of a pair of
units follow (`securevfl.families.transfer.taylor`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import SparseRows
from securevfl.families.transfer.pair_rows import PairRows, unit_pairs

RowBlockReader = Callable[[int, int], tuple[NDArray[np.intp], Floats]]


def vector_length(n: int, d: int) -> int:
    """How many numbers go each way: n d + d (d + 1) / 2."""
    return n * d + d * (d + 1) // 2


def largest_entry(largest: float, gamma: float) -> float:
    """Return a bound on every number of either vector, given that no representation exceeds `largest`."""
    return max(largest * (0.5 + 2 * gamma), largest, largest**2)


def upper_half(symmetric: Floats) -> Floats:
    """Return the upper half of a symmetric matrix (d x d), in the order of `unit_pairs`: d (d + 1) / 2 numbers."""
    return symmetric[unit_pairs(len(symmetric))]


def guest_vector(y: Floats, phi: Floats, U: Floats, gamma: float) -> Floats:
    """Return the vector that the host needs from the guest, made of y (n,), Phi (d,) and U^A (n x d)."""
    b = -0.5 * y[:, None] * phi - 2 * gamma * U
    return np.concatenate([b.T.ravel(), upper_half(np.outer(phi, phi))])


def host_vector(U: Floats) -> Floats:
    """Return the vector that the guest needs from the host, made of U^B (n x d)."""
    return np.concatenate([U.T.ravel(), upper_half(U.T @ U / len(U))])


class HostJacobian(SparseRows):
    """J (n d + d (d + 1) / 2 x p) of the host: J^T v is the gradient, less what `host_local_gradient` knows.

    own: the derivatives of U^B (n d x p), unit by unit. U: U^B (n x d). The row of Phi_j Phi_k is
    sum_i (u_ij J_ik + u_ik J_ij) / 4n, half of it where j = k.
    """

    def __init__(self, own: SparseRows, U: Floats) -> None:
        self._own = own
        self._n, self._d = U.shape
        found = [own.part(k * self._n, (k + 1) * self._n) for k in range(self._d)]
        self._pairs = PairRows([(columns, U.T @ part / (4 * self._n)) for columns, part in found])

    @property
    def shape(self) -> tuple[int, int]:
        return vector_length(self._n, self._d), self._own.shape[1]

    def part(self, start: int, stop: int) -> tuple[NDArray[np.intp], Floats]:
        return _joined(self._top, self._pairs, self._n * self._d, start, stop)

    def columns(self, start: int, stop: int) -> NDArray[np.intp]:
        return _touched(self._own.columns, self._pairs, self._n * self._d, start, stop)

    def _top(self, start: int, stop: int) -> tuple[NDArray[np.intp], Floats]:
        columns, found = self._own.part(start, stop)
        scaled: Floats = found / self._n
        return columns, scaled


class GuestJacobian(SparseRows):
    """J (n d + d (d + 1) / 2 x p + 1) of the guest: J^T v is the gradient and, last, the loss, less what
    `guest_local_gradient` knows.

    own: the derivatives of U^A on the overlapping rows (n d x p), unit by unit. mean: those of Phi (d x p), of which
    the same are zero.
    """

    def __init__(self, own: SparseRows, mean: Floats, phi: Floats, y: Floats, U: Floats, gamma: float) -> None:
        self._own = own
        self._mean = mean
        self._phi = phi
        self._y = y
        self._U = U
        self._gamma = gamma
        self._n, self._d = U.shape
        p, found = own.shape[1], []
        for k in range(self._d):
            columns = own.columns(k * self._n, (k + 1) * self._n)
            slope = np.append(mean[k, columns], phi[k] / 2)  # the loss is half a derivative by Phi
            by_unit = np.outer(phi, slope) / 4
            by_unit[k, -1] += gamma  # the trace: the mean of |u_i^B|^2
            found.append((np.append(columns, p), by_unit))
        self._pairs = PairRows(found)

    @property
    def shape(self) -> tuple[int, int]:
        return vector_length(self._n, self._d), self._own.shape[1] + 1

    def part(self, start: int, stop: int) -> tuple[NDArray[np.intp], Floats]:
        return _joined(self._top, self._pairs, self._n * self._d, start, stop)

    def columns(self, start: int, stop: int) -> NDArray[np.intp]:
        return _touched(self._own_and_loss, self._pairs, self._n * self._d, start, stop)

    def _own_and_loss(self, start: int, stop: int) -> NDArray[np.intp]:
        return np.append(self._own.columns(start, stop), self._own.shape[1])

    def _top(self, start: int, stop: int) -> tuple[NDArray[np.intp], Floats]:
        unit, row = np.divmod(np.arange(start, stop), self._n)
        columns, own = self._own.part(start, stop)
        gradient = -0.5 * self._y[row, None] * self._mean[:, columns][unit] - 2 * self._gamma * own
        loss = -0.5 * self._y[row] * self._phi[unit] - 2 * self._gamma * self._U[row, unit]
        found: Floats = np.column_stack([gradient, loss]) / self._n
        return np.append(columns, self._own.shape[1]), found


def _joined(top: RowBlockReader, tail: PairRows, end: int, start: int, stop: int) -> tuple[NDArray[np.intp], Floats]:
    """Rows [start, stop) of the rows of units, of which there are `end`, and those of pairs below them."""
    if stop <= end:
        return top(start, stop)
    if start >= end:
        return tail.part(start - end, stop - end)
    above, below = top(start, end), tail.part(0, stop - end)
    columns = np.union1d(above[0], below[0])
    found = np.zeros((stop - start, len(columns)))
    found[: end - start, np.searchsorted(columns, above[0])] = above[1]
    found[end - start :, np.searchsorted(columns, below[0])] = below[1]
    return columns, found


def _touched(
    top: Callable[[int, int], NDArray[np.intp]], tail: PairRows, end: int, start: int, stop: int
) -> NDArray[np.intp]:
    """Return the columns that `_joined` gives for rows [start, stop), without their values."""
    above = [top(start, min(stop, end))] if start < end else []
    below = [tail.columns(max(start, end) - end, stop - end)] if stop > end else []
    return np.unique(np.concatenate([*above, *below]))


def host_local_gradient(own: SparseRows, U: Floats, gamma: float) -> Floats:
    """Return what the host adds to J^T v (p,): the gradient of gamma mean |u_i^B|^2."""
    n = len(U)
    return 2 * gamma / n * own.backward(U.T.reshape(-1, 1))[:, 0]


def guest_local_gradient(own: SparseRows, U: Floats, gamma: float) -> Floats:
    """Return what the guest adds to J^T v (p + 1,): the gradient of gamma mean |u_i^A|^2, and as last number that term
    and log 2, which belong to the loss."""
    value = np.log(2) + gamma * (U**2).sum() / len(U)
    return np.append(host_local_gradient(own, U, gamma), value)
