"""Several local steps on one decrypted gradient: a quadratic model of a party's objective about its current weights.

Let U (n, d) be the representations that a party's network with weights theta computes, and J the derivatives of U by
theta. If the network is linearised about theta_0, the objective of `securevfl.families.transfer.taylor` is a quadratic
in theta. Its gradient at theta_0 is decrypted once. For a step s with E = J s (n, d), its Hessian times s is
    host     J^T (E Phi^T Phi / 4 + 2 * gamma * E) / n             Phi^T Phi of the guest
    guest    D^T S D s / 4 + 2 * gamma * J^T E / n                 S = mean of u^T u over the host's rows u of U
The guest has the labels, and Phi is its mean representation; D (d, p) is the derivative of Phi by theta. So all steps
of a round need only d * (d + 1) / 2 numbers of the other party. Steps are at most 1 over the largest eigenvalue, and
end when the neglected change of the representations exceeds `MAX_NONLINEARITY` times the linear one (root mean square).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import MAX_MATERIALIZED_NUMBERS, SparseRows
from securevfl.families.transfer.pair_rows import unit_pairs

MAX_NONLINEARITY = 0.5
POWER_ITERATIONS = 20


def symmetric_matrix(upper: Floats, d: int) -> Floats:
    """Return the symmetric matrix (d, d) whose upper half is `upper`, in the order of `taylor.upper_half`."""
    matrix = np.zeros((d, d))
    j, k = unit_pairs(d)
    matrix[j, k] = matrix[k, j] = upper
    return matrix


class LocalQuadratic:
    """The objective of one party as a quadratic about weights where its gradient is known.

    Args:
        derivatives: the derivatives of the representations with respect to the weights (n * d, p), unit by unit.
        U: the party's representations of the rows of the batch (n, d).
        theta: theta_0 (p,).
        gradient: the gradient at theta_0 (p,).
        gamma: weight of the distance of representations.
        moments: the other party's second moments (d, d).
        mean: the derivatives D of Phi (d, p) at the guest, None at the host.
    """

    def __init__(
        self,
        derivatives: SparseRows,
        U: Floats,
        theta: Floats,
        gradient: Floats,
        gamma: float,
        *,
        moments: Floats,
        mean: Floats | None = None,
    ) -> None:
        self._derivatives, self._U, self._moments, self._mean = derivatives, U, moments, mean
        self._theta = theta.copy()
        self._gradient = gradient
        self._gamma = gamma
        n, d = U.shape
        fits_memory = n * d * len(derivatives.columns(0, n)) <= MAX_MATERIALIZED_NUMBERS
        self._cached_units = [self._read_unit(k) for k in range(d)] if fits_memory else None

    def max_step_size(self, eta: float) -> float:
        """Return `eta`, or 1 over the largest eigenvalue of the Hessian if that is less."""
        v = self._gradient
        for _ in range(POWER_ITERATIONS):
            norm = float(np.linalg.norm(v))
            if norm == 0.0:
                return eta
            v = self._hessian_product(v / norm, self._output_change(v / norm))
        return 1 / max(float(np.linalg.norm(v)), 1 / eta)

    def gradient(self, theta: Floats, U: Floats) -> Floats | None:
        """Return the gradient of the quadratic at other weights.

        Args:
            theta: the weights at which the gradient is computed (p,).
            U: the representations (n, d) that the network computes with these weights.

        Returns:
            The gradient (p,); None if the network is no longer nearly linear.
        """
        step = theta - self._theta
        change = self._output_change(step)
        if ((U - self._U - change) ** 2).sum() > MAX_NONLINEARITY**2 * (change**2).sum():
            return None
        return self._gradient + self._hessian_product(step, change)

    def _hessian_product(self, step: Floats, change: Floats) -> Floats:
        """Return the Hessian times a step, which changes the representations by `change` (n, d)."""
        if self._mean is None:
            return self._mean_backward(change @ self._moments / 4 + 2 * self._gamma * change)
        by_mean: Floats = self._mean.T @ (self._moments @ (self._mean @ step)) / 4
        return by_mean + self._mean_backward(2 * self._gamma * change)

    def _output_change(self, step: Floats) -> Floats:
        """Return J times a step, as (n, d)."""
        n, d = self._U.shape
        change = np.empty((n, d))
        for k in range(d):
            columns, values = self._unit(k)
            change[:, k] = values @ step[columns]
        return change

    def _mean_backward(self, V: Floats) -> Floats:
        """Return J^T times V (n, d), divided by n."""
        n, d = V.shape
        gradient = np.zeros(len(self._theta))
        for k in range(d):
            columns, values = self._unit(k)
            gradient[columns] += V[:, k] @ values / n
        return gradient

    def _unit(self, k: int) -> tuple[NDArray[np.intp], Floats]:
        """Return the indices of the weights that column k of U can depend on, and its derivatives by these weights."""
        return self._read_unit(k) if self._cached_units is None else self._cached_units[k]

    def _read_unit(self, k: int) -> tuple[NDArray[np.intp], Floats]:
        return self._derivatives.part(k * len(self._U), (k + 1) * len(self._U))
