"""Local steps on one opening: a party's objective as a quadratic about the weights that it had at the exchange.

With its network taken as linear in its weights there, u(theta) = u + J (theta - theta_0), the objective of
`securevfl.families.transfer.taylor` is a quadratic in theta. Its gradient at theta_0 is what is opened once; its
Hessian follows from J, which is the party's own, and from d (d + 1) / 2 numbers of the other's, for a step s with E
= J s (n x d):

    host     J^T (E Phi^T Phi / 4 + 2 gamma E) / n             Phi^T Phi of the guest's
    guest    D^T S D s / 4 + 2 gamma J^T E / n                 S = mean u^B^T u^B of the host's; D: of Phi by theta

So the other steps of a round need nothing from the other party. None is longer than 1 over the largest eigenvalue of
the Hessian, beyond which steps on a quadratic overshoot, and they end where the network has moved so far that it is
no longer nearly linear: where what is left out is more than `MAX_NONLINEARITY` times what was taken, in mean square
over the rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import MAX_MATERIALIZED_NUMBERS, SparseRows
from securevfl.families.transfer.pair_rows import unit_pairs

MAX_NONLINEARITY = 0.5

POWER_ITERATIONS = 20  # of the power method


def symmetric_matrix(upper: Floats, d: int) -> Floats:
    """Return the symmetric matrix (d x d) of which `upper` is the upper half, as `taylor.upper` gives it."""
    found = np.zeros((d, d))
    j, k = unit_pairs(d)
    found[j, k] = found[k, j] = upper
    return found


class LocalQuadratic:
    """The objective of one party about the weights theta_0 (p,), where its gradient (p,) is known.

    own: the derivatives of its representations U (n x d) by its weights, unit by unit (n d x p). moments: the other
    party's (d x d). mean: at the party with labels the derivatives of Phi (d x p), None at the other.
    """

    def __init__(
        self,
        own: SparseRows,
        U: Floats,
        theta: Floats,
        gradient: Floats,
        gamma: float,
        *,
        moments: Floats,
        mean: Floats | None = None,
    ) -> None:
        self._own, self._U, self._moments, self._mean = own, U, moments, mean
        self._theta = theta.copy()
        self._gradient = gradient
        self._gamma = gamma
        n, d = U.shape
        few = n * d * len(own.columns(0, n)) <= MAX_MATERIALIZED_NUMBERS
        self._parts = [self._jacobian_rows(k) for k in range(d)] if few else None

    def longest(self, eta: float) -> float:
        """Return eta, or 1 over the largest eigenvalue of the Hessian if that is less."""
        v = self._gradient
        for _ in range(POWER_ITERATIONS):
            size = float(np.linalg.norm(v))
            if size == 0.0:
                return eta
            v = self._bend(v / size, self._outputs_moved(v / size))
        return 1 / max(float(np.linalg.norm(v)), 1 / eta)

    def gradient(self, theta: Floats, U: Floats) -> Floats | None:
        """Return the gradient at theta, where the network gives U; None where it is not linear enough any more."""
        step = theta - self._theta
        moved = self._outputs_moved(step)
        if ((U - self._U - moved) ** 2).sum() > MAX_NONLINEARITY**2 * (moved**2).sum():
            return None
        return self._gradient + self._bend(step, moved)

    def _bend(self, step: Floats, moved: Floats) -> Floats:
        """Return the Hessian times a step, by which the representations are moved (n x d)."""
        if self._mean is None:
            return self._back(moved @ self._moments / 4 + 2 * self._gamma * moved)
        by_mean: Floats = self._mean.T @ (self._moments @ (self._mean @ step)) / 4
        return by_mean + self._back(2 * self._gamma * moved)

    def _outputs_moved(self, step: Floats) -> Floats:
        """J times a step, as (n x d)."""
        n, d = self._U.shape
        found = np.empty((n, d))
        for k in range(d):
            columns, part = self._part(k)
            found[:, k] = part @ step[columns]
        return found

    def _back(self, V: Floats) -> Floats:
        """J^T times V (n x d) / n."""
        n, d = V.shape
        found = np.zeros(len(self._theta))
        for k in range(d):
            columns, part = self._part(k)
            found[columns] += V[:, k] @ part / n
        return found

    def _part(self, k: int) -> tuple[NDArray[np.intp], Floats]:
        """Return the rows of J for representation k: the columns in which they have entries, and these."""
        return self._jacobian_rows(k) if self._parts is None else self._parts[k]

    def _jacobian_rows(self, k: int) -> tuple[NDArray[np.intp], Floats]:
        return self._own.part(k * len(self._U), (k + 1) * len(self._U))
