"""The transform of size 4096 of a few long polynomials, as two products with 64 x 64 matrices."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel.residues import DEGREE, Primes, reduce

_SIDE = 64


class SquarePlaces(NamedTuple):
    """Coefficients that are wanted: rows n1 and columns n2 with any, and where each is in what is left."""

    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    places: NDArray[np.intp]


class SquareTransform:
    """The transform of size 4096; `powers` (P, 8192): psi^k of each prime, `known` (4096,): k by the place of a
    value."""

    def __init__(self, primes: Primes, powers: Floats, known: NDArray[np.int64]) -> None:
        self._primes = primes
        places, n = known.reshape(_SIDE, _SIDE), np.arange(_SIDE)
        k1, k2 = places[:, 0] % _SIDE, places[0] // _SIDE
        assert (places == k1[:, None] + _SIDE * k2).all(), "values stand in an order that does not split"
        exponents = [np.outer(2 * k1 + 1, _SIDE * n), np.outer(2 * k1 + 1, n), np.outer(n, 2 * _SIDE * k2)]
        self._ahead, back = (
            [np.ascontiguousarray(powers[:, sign * exponent % (2 * DEGREE)]) for exponent in exponents]
            for sign in (1, -1)
        )
        for row, p in zip(back[0], primes.values, strict=True):
            row *= -((p - 1) // DEGREE)  # 1/4096 modulo p, as 4096 divides p - 1
            reduce(row, p)
        self._back = [np.ascontiguousarray(back[at].transpose(0, 2, 1)) for at in (0, 2)]
        self._untwist = back[1]

    def forward(self, x: Floats, out: Floats) -> None:
        """Values out (P, 4096, w) of polynomials x, of the same shape or (4096, w)."""
        primes, (outer, between, inner) = self._primes, self._ahead
        value = np.matmul(outer[:, None], _squares(x))
        primes.reduce(value)
        value *= between[:, None]
        primes.reduce(value)
        value = np.matmul(value, inner[:, None])
        primes.reduce(value)
        out[...] = value.reshape(*value.shape[:2], DEGREE).swapaxes(1, 2)

    def back(self, X: Floats, where: NDArray[np.intp] | None, out: Floats) -> None:
        """Coefficients out (P, count, w), those at `where` or all, behind values X (P, 4096, w)."""
        primes, (outer, inner), between = self._primes, self._back, self._untwist
        places: NDArray[np.intp] | slice = slice(None)
        if where is not None:
            rows, columns, places = _wanted(where.tobytes())
            outer, between, inner = outer[:, rows], between[..., columns], inner[..., columns]
        value = np.matmul(_squares(X), inner[:, None])
        primes.reduce(value)
        value *= between[:, None]
        primes.reduce(value)
        value = np.matmul(outer[:, None], value)
        primes.reduce(value)
        out[...] = value.reshape(*value.shape[:2], -1)[..., places].swapaxes(1, 2)


def _squares(x: Floats) -> Floats:
    """Polynomials (..., 4096, w) as (..., w, 64, 64)."""
    turned = np.ascontiguousarray(x.swapaxes(-1, -2))
    return turned.reshape(*turned.shape[:-1], _SIDE, _SIDE)


@functools.lru_cache(maxsize=64)
def _wanted(where: bytes) -> SquarePlaces:
    coefficients = np.frombuffer(where, np.intp)
    rows, row = np.unique(coefficients // _SIDE, return_inverse=True)
    columns, column = np.unique(coefficients % _SIDE, return_inverse=True)
    return SquarePlaces(rows, columns, row * len(columns) + column)
