"""Lattice reduction in floating point (LLL; Lenstra, Lenstra and Lovasz 1982, after Cohen 1993, algorithm 2.6.3)."""

from __future__ import annotations

import numpy as np

from securevfl.base.arrays import Floats


def reduce(basis: Floats, delta: float = 0.99) -> Floats:
    """Return the LLL-reduced rows of an integer basis.

    Args:
        basis: integer entries, below about 2^40.
        delta: parameter of the Lovasz condition.

    Returns:
        Another basis of the same lattice, with short rows first.
    """
    B = basis.copy()
    mu, squares = _orthogonalise(B)
    k, swaps = 1, 0
    while k < len(B):
        for j in range(k - 1, -1, -1):
            q = np.rint(mu[k, j])
            if q:
                B[k] -= q * B[j]
                mu[k, : j + 1] -= q * mu[j, : j + 1]
        m = mu[k, k - 1]
        if squares[k] >= (delta - m * m) * squares[k - 1]:
            k += 1
            continue
        longer = squares[k] + m * m * squares[k - 1]
        new = m * squares[k - 1] / longer
        squares[k], squares[k - 1] = squares[k - 1] * squares[k] / longer, longer
        B[[k, k - 1]] = B[[k - 1, k]]
        mu[[k, k - 1], : k - 1] = mu[[k - 1, k], : k - 1]
        mu[k, k - 1] = new
        below = mu[k + 1 :, k].copy()
        mu[k + 1 :, k] = mu[k + 1 :, k - 1] - m * below
        mu[k + 1 :, k - 1] = below + new * mu[k + 1 :, k]
        swaps += 1
        if swaps % 500 == 0:  # compute the coefficients again, before rounding errors of their updates accumulate
            mu, squares = _orthogonalise(B)
        k = max(k - 1, 1)
    return B


def _orthogonalise(B: Floats) -> tuple[Floats, Floats]:
    """Return the Gram-Schmidt coefficients (lower triangular, ones on the diagonal) and squared lengths of B's rows."""
    R = np.linalg.qr(B.T, mode="r")
    diagonal = np.diag(R)
    mu: Floats = (R / diagonal[:, None]).T.copy()
    return mu, diagonal**2
