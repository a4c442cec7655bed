"""A faster number-theoretic transform (ntt.py) of few polynomials with 4096 coefficients: two matrix products.

The steps of `securevfl.crypto.kernel.ntt` use many small matrices. For few polynomials, reading these and calling BLAS
takes longer than the arithmetic. Here the M = 64 * 64 coefficients are arranged as a square: coefficient n = 64 * n1 +
n2 in row n1 and column n2, and value k = k1 + 64 * k2 likewise. With a number psi such that psi^M = -1 modulo a prime,
the values X of coefficients x are

    Y[k1, n2] = sum over n1 of psi^(64 * n1 * (2 * k1 + 1)) * x[n1, n2]
    X[k]      = sum over n2 of psi^(128 * n2 * k2) * (psi^(n2 * (2 * k1 + 1)) * Y[k1, n2])

Both sums are products with one matrix (64, 64) for all polynomials, and Y is multiplied by powers of psi in between.
The values are in the same order as those of `Transform`. All arrays have the axis of the P primes first.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel.residues import DEGREE, Primes, reduce

_SIDE = 64


class SquarePositions(NamedTuple):
    """The positions of needed coefficients in the square (64, 64).

    Attributes:
        rows: the rows n1 with needed coefficients.
        columns: the columns n2 with needed coefficients.
        positions: the position of each coefficient, if only these rows and columns are stored, row by row.
    """

    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    positions: NDArray[np.intp]


class SquareTransform:
    """The transform of polynomials with 4096 coefficients, modulo P primes.

    Args:
        primes: the prime moduli: a number is stored as its remainder modulo each of them.
        powers: the powers psi^k modulo each prime, for k < 8192 (P, 8192).
        exponents: the number k of the value at each position (4096,).
    """

    def __init__(self, primes: Primes, powers: Floats, exponents: NDArray[np.int64]) -> None:
        self._primes = primes
        square, n = exponents.reshape(_SIDE, _SIDE), np.arange(_SIDE)
        k1, k2 = square[:, 0] % _SIDE, square[0] // _SIDE
        assert (square == k1[:, None] + _SIDE * k2).all(), "the order of the values does not split"
        twiddles = [np.outer(2 * k1 + 1, _SIDE * n), np.outer(2 * k1 + 1, n), np.outer(n, 2 * _SIDE * k2)]
        self._forward, inverse = (
            [np.ascontiguousarray(powers[:, sign * twiddle % (2 * DEGREE)]) for twiddle in twiddles] for sign in (1, -1)
        )
        for row, p in zip(inverse[0], primes.values, strict=True):
            row *= -((p - 1) // DEGREE)  # 1/4096 modulo p, because 4096 divides p - 1
            reduce(row, p)
        self._inverse = [np.ascontiguousarray(inverse[k].transpose(0, 2, 1)) for k in (0, 2)]
        self._untwist = inverse[1]

    def forward(self, x: Floats, out: Floats) -> None:
        """Compute the values of w polynomials.

        Args:
            x: coefficients (P, 4096, w), or (4096, w) if they are the same for all primes.
            out: receives the values (P, 4096, w).
        """
        primes, (outer, between, inner) = self._primes, self._forward
        value = np.matmul(outer[:, None], _squares(x))
        primes.reduce(value)
        value *= between[:, None]
        primes.reduce(value)
        value = np.matmul(value, inner[:, None])
        primes.reduce(value)
        out[...] = value.reshape(*value.shape[:2], DEGREE).swapaxes(1, 2)

    def back(self, X: Floats, where: NDArray[np.intp] | None, out: Floats) -> None:
        """Compute coefficients of w polynomials from their values.

        Args:
            X: values (P, 4096, w).
            where: the indices of the needed coefficients; None for all.
            out: receives the needed coefficients (P, len(where), w), or all (P, 4096, w).
        """
        primes, (outer, inner), between = self._primes, self._inverse, self._untwist
        positions: NDArray[np.intp] | slice = slice(None)
        if where is not None:
            rows, columns, positions = _positions(where.tobytes())
            outer, between, inner = outer[:, rows], between[..., columns], inner[..., columns]
        value = np.matmul(_squares(X), inner[:, None])
        primes.reduce(value)
        value *= between[:, None]
        primes.reduce(value)
        value = np.matmul(outer[:, None], value)
        primes.reduce(value)
        out[...] = value.reshape(*value.shape[:2], -1)[..., positions].swapaxes(1, 2)


def _squares(x: Floats) -> Floats:
    """Arrange coefficients or values (..., 4096, w) as squares (..., w, 64, 64)."""
    last_axis = np.ascontiguousarray(x.swapaxes(-1, -2))
    return last_axis.reshape(*last_axis.shape[:-1], _SIDE, _SIDE)


@functools.lru_cache(maxsize=64)
def _positions(where: bytes) -> SquarePositions:
    coefficients = np.frombuffer(where, np.intp)
    rows, row = np.unique(coefficients // _SIDE, return_inverse=True)
    columns, column = np.unique(coefficients % _SIDE, return_inverse=True)
    return SquarePositions(rows, columns, row * len(columns) + column)
