"""The objective of transfer learning, written so that each unknown of the other party occurs once and linearly.

Secure Federated Transfer Learning (Liu et al. 2018), sections 3 and 4. The guest A has the labels y_i in {-1, 1}, the
host B has none. For n overlapping rows, their networks compute representations u_i^A and u_i^B (d,). Phi is the mean of
y_i u_i^A over the labelled rows of A. log(1 + exp(-y_i Phi u_i^B)) is expanded to second order, so the objective is
    1/n sum_i [ log 2 - y_i Phi u_i^B / 2 + (Phi u_i^B)^2 / 8 + gamma |u_i^A - u_i^B|^2 ]
Every gradient by a network's weights is J^T v, for a matrix J of this party and a vector v of the other party:
    guest -> host    b_i = -y_i Phi / 2 - 2 gamma u_i^A (n * d numbers)  Phi^T Phi, upper half (d * (d + 1) / 2)
    host -> guest    u_i^B (n * d numbers)                               sum_i u_i^B^T u_i^B / n, upper half
v contains the numbers of unit 0 (the first of the d representations) of all rows, then those of unit 1, and so on, and
finally the rows for pairs of units (`securevfl.families.transfer.pair_rows`).
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
    """Return the length of either vector: n * d + d * (d + 1) / 2."""
    return n * d + d * (d + 1) // 2


def largest_entry(largest: float, gamma: float) -> float:
    """Return an upper bound of the absolute values in both vectors, if those of representations are bounded.

    Args:
        largest: the bound of representations.
        gamma: weight of the distance of representations.

    Returns:
        The upper bound.
    """
    return max(largest * (0.5 + 2 * gamma), largest, largest**2)


def upper_half(symmetric: Floats) -> Floats:
    """Return the upper half (d (d + 1) / 2,) of a symmetric matrix (d, d), in the order of `unit_pairs`."""
    return symmetric[unit_pairs(len(symmetric))]


def guest_vector(y: Floats, phi: Floats, U: Floats, gamma: float) -> Floats:
    """Return the vector that the host needs from the guest.

    Args:
        y: labels (n,) in {-1, 1}.
        phi: Phi (d,), the guest's mean representation.
        U: representations U^A (n, d).
        gamma: weight of the distance of representations.

    Returns:
        The vector (n * d + d * (d + 1) / 2,).
    """
    b = -0.5 * y[:, None] * phi - 2 * gamma * U
    return np.concatenate([b.T.ravel(), upper_half(np.outer(phi, phi))])


def host_vector(U: Floats) -> Floats:
    """Return the vector that the guest needs from the host; U (n, d) are the host's representations."""
    return np.concatenate([U.T.ravel(), upper_half(U.T @ U / len(U))])


class HostJacobian(SparseRows):
    """J (n * d + d * (d + 1) / 2, p) of the host: J^T v + `host_local_gradient` is its gradient.

    The row of Phi_j Phi_k is sum_i (u_ij * J_ik + u_ik * J_ij) / (4 * n), and half of it if j = k.

    Args:
        derivatives: the derivatives of U^B (n * d, p), unit by unit.
        U: the host's representations U^B of the overlapping rows (n, d).
    """

    def __init__(self, derivatives: SparseRows, U: Floats) -> None:
        self._derivatives = derivatives
        self._n, self._d = U.shape
        units = [derivatives.part(k * self._n, (k + 1) * self._n) for k in range(self._d)]
        self._pairs = PairRows([(columns, U.T @ values / (4 * self._n)) for columns, values in units])

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (n * d + d * (d + 1) / 2, p)."""
        return vector_length(self._n, self._d), self._derivatives.shape[1]

    def part(self, start: int, stop: int) -> tuple[NDArray[np.intp], Floats]:
        """Return the columns of rows [start, stop) that may not be zero, and their values."""
        return _joined(self._unit_rows, self._pairs, self._n * self._d, start, stop)

    def columns(self, start: int, stop: int) -> NDArray[np.intp]:
        """Return the columns in which rows [start, stop) may have entries."""
        return _joined_columns(self._derivatives.columns, self._pairs, self._n * self._d, start, stop)

    def _unit_rows(self, start: int, stop: int) -> tuple[NDArray[np.intp], Floats]:
        columns, values = self._derivatives.part(start, stop)
        scaled: Floats = values / self._n
        return columns, scaled


class GuestJacobian(SparseRows):
    """J (n * d + d * (d + 1) / 2, p + 1) of the guest.

    J^T v + `guest_local_gradient` is the gradient, followed by the loss.

    Args:
        derivatives: the derivatives of U^A on the overlapping rows (n * d, p), unit by unit.
        mean: the derivatives of Phi (d, p), with zeros where `derivatives` has them.
        phi: Phi (d,), the guest's mean representation.
        y: labels (n,) in {-1, 1}.
        U: the guest's representations U^A of the overlapping rows (n, d).
        gamma: weight of the distance of representations.
    """

    def __init__(self, derivatives: SparseRows, mean: Floats, phi: Floats, y: Floats, U: Floats, gamma: float) -> None:
        self._derivatives = derivatives
        self._mean = mean
        self._phi = phi
        self._y = y
        self._U = U
        self._gamma = gamma
        self._n, self._d = U.shape
        p, units = derivatives.shape[1], []
        for k in range(self._d):
            columns = derivatives.columns(k * self._n, (k + 1) * self._n)
            # the last entry gives the loss: Phi_k / 2 times the derivative by Phi_k, summed over k, is (Phi u)^2 / 8
            slope = np.append(mean[k, columns], phi[k] / 2)
            by_unit = np.outer(phi, slope) / 4
            # the term gamma |u_i^B|^2: the diagonal of the host's matrix adds up to the mean of |u_i^B|^2
            by_unit[k, -1] += gamma
            units.append((np.append(columns, p), by_unit))
        self._pairs = PairRows(units)

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (n * d + d * (d + 1) / 2, p + 1)."""
        return vector_length(self._n, self._d), self._derivatives.shape[1] + 1

    def part(self, start: int, stop: int) -> tuple[NDArray[np.intp], Floats]:
        """Return the non-zero columns of rows [start, stop), and their values."""
        return _joined(self._unit_rows, self._pairs, self._n * self._d, start, stop)

    def columns(self, start: int, stop: int) -> NDArray[np.intp]:
        """Return the columns in which rows [start, stop) may have entries."""
        return _joined_columns(self._columns_and_loss, self._pairs, self._n * self._d, start, stop)

    def _columns_and_loss(self, start: int, stop: int) -> NDArray[np.intp]:
        return np.append(self._derivatives.columns(start, stop), self._derivatives.shape[1])

    def _unit_rows(self, start: int, stop: int) -> tuple[NDArray[np.intp], Floats]:
        unit, row = np.divmod(np.arange(start, stop), self._n)
        columns, derivatives = self._derivatives.part(start, stop)
        gradient = -0.5 * self._y[row, None] * self._mean[:, columns][unit] - 2 * self._gamma * derivatives
        loss = -0.5 * self._y[row] * self._phi[unit] - 2 * self._gamma * self._U[row, unit]
        values: Floats = np.column_stack([gradient, loss]) / self._n
        return np.append(columns, self._derivatives.shape[1]), values


def _joined(
    read_units: RowBlockReader, pairs: PairRows, unit_rows: int, start: int, stop: int
) -> tuple[NDArray[np.intp], Floats]:
    """Return rows start to stop - 1 of J, whose first `unit_rows` rows belong to units and whose others to pairs."""
    if stop <= unit_rows:
        return read_units(start, stop)
    if start >= unit_rows:
        return pairs.part(start - unit_rows, stop - unit_rows)
    above, below = read_units(start, unit_rows), pairs.part(0, stop - unit_rows)
    columns = np.union1d(above[0], below[0])
    values = np.zeros((stop - start, len(columns)))
    values[: unit_rows - start, np.searchsorted(columns, above[0])] = above[1]
    values[unit_rows - start :, np.searchsorted(columns, below[0])] = below[1]
    return columns, values


def _joined_columns(
    read_columns: Callable[[int, int], NDArray[np.intp]], pairs: PairRows, unit_rows: int, start: int, stop: int
) -> NDArray[np.intp]:
    """Return the columns in which rows start to stop - 1 of such a matrix J may have non-zero entries."""
    above = [read_columns(start, min(stop, unit_rows))] if start < unit_rows else []
    below = [pairs.columns(max(start, unit_rows) - unit_rows, stop - unit_rows)] if stop > unit_rows else []
    return np.unique(np.concatenate([*above, *below]))


def host_local_gradient(derivatives: SparseRows, U: Floats, gamma: float) -> Floats:
    """Return the part of the host's gradient (p,) that it computes alone: that of gamma mean |u_i^B|^2."""
    n = len(U)
    return 2 * gamma / n * derivatives.backward(U.T.reshape(-1, 1))[:, 0]


def guest_local_gradient(derivatives: SparseRows, U: Floats, gamma: float) -> Floats:
    """Return the part of the guest's gradient and loss (p + 1,) that it computes alone.

    That is the gradient of gamma mean |u_i^A|^2, followed by this term plus log 2, which belong to the loss.
    """
    value = np.log(2) + gamma * (U**2).sum() / len(U)
    return np.append(host_local_gradient(derivatives, U, gamma), value)
