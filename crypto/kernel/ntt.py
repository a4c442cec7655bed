"""Number-theoretic transform (NTT): the values of polynomials modulo y^M + 1 at its M roots, modulo primes.

Polynomials are multiplied by multiplying their values at each root ("point"), as with a fast Fourier transform. Modulo
a prime p, let psi be a number with psi^M = -1. The transform of coefficients x[n] is X[k] = sum over n of x[n] * psi^(n
* (2 * k + 1)), for n and k from 0 to M - 1. It is computed in a few steps (Cooley, Tukey 1965), each of which is a
product with small matrices. A step processes one digit of n and yields one digit of k. Suppose that the previous steps
have yielded the lowest digits kappa of k, which have K possible values, and that L = M / K numbers remain for each
kappa. The next digit of n is a, with A possible values, and L = A * L', n = L' * a + n'. The next digit of k is a', so
k = kappa + K * a' + K * A * k''. As psi^(2 * M) = 1,

    Y[kappa + K * a', n'] = sum over a of psi^(L' * a * (2 * (kappa + K * a') + 1)) * X[kappa, a, n']

which is a product with one A x A matrix for each kappa. The next step does the same with K * A in place of K, and L' in
place of L. The matrices contain all powers of psi, so a step is one product and one reduction modulo p. The inverse
transform uses the inverse matrices.

Arrays have the axis of the P primes first, then the axis of the M coefficients or values, and then other axes, which
suits BLAS. The values are in the order that the steps produce. Callers only multiply values at the same position, so
the order does not matter.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel.residues import DEGREE, Primes, matmul, reduce
from securevfl.crypto.kernel.square_ntt import SquareTransform
from securevfl.errors import ConfigError

MAX_SQUARE_POLYNOMIALS = 4
"""`SquareTransform` is faster for at most this number of polynomials."""
_RADIX_BITS = 4  # a digit has at most 2^4 values


class Step(NamedTuple):
    """The matrices of one step of the transform.

    Attributes:
        digits: the number A of values of the digit.
        below: the number L' of coefficients that remain for each value of the digit.
        forward: the matrices (P, K, A, A) for P primes.
        inverse: the inverses of these matrices (P, K, A, A).
    """

    digits: int
    below: int
    forward: Floats
    inverse: Floats


class Transform:
    """The transform of polynomials with M coefficients, modulo P primes.

    Args:
        primes: the prime moduli: a number is stored as its remainder modulo each of them.
        size: the number M, a power of two from 2 to 4096.

    Raises:
        ConfigError: if the size is another number.

    Attributes:
        roots: the value of y at each point, modulo each prime (P, M).
    """

    def __init__(self, primes: Primes, size: int) -> None:
        if size < 2 or size & (size - 1) or size > DEGREE:
            raise ConfigError(
                f"a transform cannot have size {size}",
                f"use a power of two from 2 to {DEGREE}",
                code="SVFL-CRYPTO-PARAMETERS",
            )
        self.primes, self.size = primes, size
        powers = np.stack([_powers(p, 2 * size) for p in primes.values])
        exponents, below = np.zeros(1, np.int64), size  # exponents: the value of kappa at each position
        self._steps = []
        for digits in _digits(size):
            below //= digits
            order = np.arange(digits)
            if size == DEGREE and below == digits:  # an order of the values that `SquareTransform` can produce too
                order = order.reshape(-1, 4).T.reshape(-1)
            exponents = (exponents[:, None] + size // (digits * below) * order).reshape(-1)
            odd = (2 * exponents + 1).reshape(-1, digits)
            twiddles = below * odd[:, :, None] * np.arange(digits)  # exponents of psi, with axes (K, a', a)
            inverse = np.ascontiguousarray(powers[:, -twiddles.transpose(0, 2, 1) % (2 * size)])
            for row, p in zip(inverse, primes.values, strict=True):
                row *= -((p - 1) // digits)  # 1/A modulo p, because A divides p - 1
                reduce(row, p)
            self._steps.append(Step(digits, below, powers[:, twiddles % (2 * size)], inverse))
        self.roots: Floats = powers[:, 2 * exponents + 1]
        self._square = SquareTransform(primes, powers, exponents) if size == DEGREE else None

    def forward(self, x: Floats) -> Floats:
        """Return the values of polynomials at all points.

        Args:
            x: coefficients (P, M, *batch), or (M, *batch) if they are the same for all primes.

        Returns:
            The values (P, M, *batch).
        """
        by_prime = x.ndim > 1 and x.shape[:2] == (len(self.primes), self.size)
        batch = x.shape[2:] if by_prime else x.shape[1:]
        width = math.prod(batch)
        out = np.empty((len(self.primes), self.size, width))
        if self._square and width <= MAX_SQUARE_POLYNOMIALS:
            self._square.forward(x.reshape(*x.shape[: 1 + by_prime], width), out)
            return out.reshape(len(self.primes), self.size, *batch)
        spare = np.empty((self.size, width))
        for k, p in enumerate(self.primes.values):
            value = x[k] if by_prime else x
            targets = [out[k], spare] if len(self._steps) % 2 else [spare, out[k]]
            for number, step in enumerate(self._steps):
                shape = (-1, step.digits, step.below * width)
                target = targets[number % 2]
                matmul(step.forward[k], value.reshape(shape), target.reshape(shape))
                reduce(target, p)
                value = target
        return out.reshape(len(self.primes), self.size, *batch)

    def back(self, X: Floats, where: NDArray[np.intp] | None = None) -> Floats:
        """Return the coefficients of polynomials, from their values.

        If only some coefficients are needed, each step skips digits that none of them has.

        Args:
            X: values (P, M, *batch).
            where: the indices of the needed coefficients; None for all.

        Returns:
            The coefficients (P, M, *batch), or (P, len(where), *batch).
        """
        batch, width = X.shape[2:], math.prod(X.shape[2:])
        out = np.empty((len(self.primes), self.size if where is None else len(where), width))
        if self._square and width <= MAX_SQUARE_POLYNOMIALS * (1 if where is None else 4):
            self._square.back(X.reshape(len(self.primes), self.size, width), where, out)
            return out.reshape(len(self.primes), -1, *batch)
        selections = [self._selected_digits(step, where) for step in self._steps]
        gathered = np.zeros(1 if where is None else len(where), np.intp)
        for _, position, count in selections:
            gathered = gathered * count + position
        for k, p in enumerate(self.primes.values):
            value, columns = X[k], width
            for step, (digits, _, count) in zip(reversed(self._steps), reversed(selections), strict=True):
                matrices = step.inverse[k] if where is None else step.inverse[k][:, digits]
                product = np.empty((len(matrices), count, columns))
                matmul(matrices, value.reshape(-1, step.digits, columns), product)
                reduce(product, p)
                value = product
                columns *= count
            rows = value.reshape(-1, width)
            out[k] = rows if where is None else rows[gathered]
        return out.reshape(len(self.primes), -1, *batch)

    @staticmethod
    def _selected_digits(step: Step, where: NDArray[np.intp] | None) -> tuple[NDArray[np.intp], NDArray[np.intp], int]:
        """Return the digits that the indices of the needed coefficients have in a step.

        Args:
            step: the step of the inverse transform.
            where: the indices of the needed coefficients; None for all.

        Returns:
            The different digits, the position of each coefficient's digit among them, and the number of these digits.
        """
        if where is None:
            return np.arange(step.digits), np.zeros(1, np.intp), step.digits
        digits, index = np.unique(where // step.below % step.digits, return_inverse=True)
        return digits, index, len(digits)


@functools.lru_cache(maxsize=32)
def transform(primes: Primes, size: int) -> Transform:
    """Return the transform of polynomials with `size` coefficients, from a cache, because constructing it is slow."""
    return Transform(primes, size)


def multiplication_matrices(primes: Primes, polynomial: Floats, r: int) -> Floats:
    """Return matrices that multiply polynomials with N coefficients by a fixed one, at each of M = N / r points.

    A polynomial g in x, modulo x^N + 1, is the sum of g_o * x^o over o < r, for polynomials g_o in y = x^r with M
    coefficients. At a point, each g_o has one value. The product of g and h is then a matrix (r, r) times a vector:

        (g * h)_o = sum over i <= o of g_(o - i) * h_i  +  y * sum over i > o of g_(o - i + r) * h_i

    Args:
        primes: the prime moduli: a number is stored as its remainder modulo each of them.
        polynomial: the coefficients of g (P, N), or (N,) if they are the same for all primes.
        r: the number r, a power of two.

    Returns:
        The matrices (P, M, r, r).
    """
    ring = transform(primes, DEGREE // r)
    values = ring.forward(polynomial.reshape(*polynomial.shape[:-1], DEGREE // r, r))
    shifted = primes.reduce(values * ring.roots[..., None])
    below = np.arange(r)[:, None] - np.arange(r)
    return np.concatenate([values, shifted], axis=-1)[..., below % r + r * (below < 0)]


def _digits(size: int) -> list[int]:
    """Return the number of values of each digit: powers of two up to 16, as equal as possible, with product `size`."""
    bits = size.bit_length() - 1
    steps = -(-bits // _RADIX_BITS)
    return [1 << (bits // steps + (step < bits % steps)) for step in range(steps)]


def _powers(p: int, order: int) -> Floats:
    """Return the powers psi^k for k < order, in (-p/2, p/2), of a root of unity psi modulo p of exactly this order."""
    psi = next(x for x in (pow(base, (p - 1) // order, p) for base in range(2, p)) if pow(x, order // 2, p) == p - 1)
    powers = np.ones(1, np.int64)
    while len(powers) < order:  # products of two residues of 24 bits are far below 2^63
        powers = np.concatenate([powers, powers * pow(psi, len(powers), p) % p])
    return np.where(powers > p // 2, powers - p, powers).astype(np.float64)
