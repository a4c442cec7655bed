"""The values of polynomials modulo y^M + 1 at its M roots, as products of small matrices (Cooley, Tukey 1965).

With psi a root of order 2 M modulo p, X[k] = sum_n x[n] psi^(n (2k + 1)). A step takes one digit of n and gives one
of k: let K values kappa of the digits of k so far be given, L = M / K coefficients left of each, cut as L = A L', n =
L' a + n', k = kappa + K a' + K A k''. As psi^(2 M) = 1,

    Y[kappa + K a', n'] = sum_a psi^(L' a (2 (kappa + K a') + 1)) X[kappa, a, n']

is a product with one A x A matrix for each kappa, and what is left is the same problem with K A and L'. Twiddle
factors are in the matrices, so a step is one product and one reduction. Back, each matrix has its inverse.
Polynomials lie along the first axis and whatever there is of them behind, which is what a BLAS is quick at. Values
are in the order that the steps leave them in, which nobody outside needs to know: products are taken value by value.

Where polynomials of the whole ring are few and long (`SquareTransform`), these digits have as many matrices as
products, which outgrow the cache, and calls, which cost more than what they compute. There M = 64 x 64, n = 64 n1 +
n2, k = k1 + 64 k2, and all primes are taken at once:

    Y[k1, n2] = sum over n1 of psi^(64 n1 (2 k1 + 1)) X[n1, n2]
    X[k]      = sum over n2 of psi^(128 n2 k2) (psi^(n2 (2 k1 + 1)) Y[k1, n2])

Either sum is a product with one matrix for all, with twiddles between. Values are in the same order, whose places
split as k does.
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

MAX_SQUARE_POLYNOMIALS = 4  # polynomials, up to which this is quicker


_RADIX = 4  # bits of the greatest digit


class Step(NamedTuple):
    """One digit's matrices for all primes: of K x A x A each, ahead and back."""

    digits: int  # A
    left: int  # L': coefficients below this digit
    ahead: Floats
    back: Floats


class Transform:
    """The transform of size M for all primes. ConfigError unless M is a power of two from 2 to 4096."""

    def __init__(self, primes: Primes, size: int) -> None:
        if size < 2 or size & (size - 1) or size > DEGREE:
            raise ConfigError(f"transform: a power of two from 2 to {DEGREE} was expected, {size} came")
        self.primes, self.size = primes, size
        powers = np.stack([_powers(p, 2 * size) for p in primes.values])
        known, left = np.zeros(1, np.int64), size  # kappa by its place
        self._steps = []
        for digits in _digits(size):
            left //= digits
            order = np.arange(digits)
            if size == DEGREE and left == digits:  # so that places split in two, as `SquareTransform` has them
                order = order.reshape(-1, 4).T.reshape(-1)
            known = (known[:, None] + size // (digits * left) * order).reshape(-1)
            odd = (2 * known + 1).reshape(-1, digits)
            exponents = left * odd[:, :, None] * np.arange(digits)  # (K, a', a)
            back = np.ascontiguousarray(powers[:, -exponents.transpose(0, 2, 1) % (2 * size)])
            for row, p in zip(back, primes.values, strict=True):
                row *= -((p - 1) // digits)  # 1/A modulo p, as A divides p - 1
                reduce(row, p)
            self._steps.append(Step(digits, left, powers[:, exponents % (2 * size)], back))
        self.roots: Floats = powers[:, 2 * known + 1]  # (P, M): y at each point
        self._square = SquareTransform(primes, powers, known) if size == DEGREE else None

    def forward(self, x: Floats) -> Floats:
        """Values (P, M, *batch) of polynomials x (P, M, *batch), or (M, *batch) if they are the same for all primes."""
        own = x.ndim > 1 and x.shape[:2] == (len(self.primes), self.size)
        batch = x.shape[2:] if own else x.shape[1:]
        width = math.prod(batch)
        out = np.empty((len(self.primes), self.size, width))
        if self._square and width <= MAX_SQUARE_POLYNOMIALS:
            self._square.forward(x.reshape(*x.shape[: 1 + own], width), out)
            return out.reshape(len(self.primes), self.size, *batch)
        spare = np.empty((self.size, width))
        for k, p in enumerate(self.primes.values):
            value = x[k] if own else x
            places = [out[k], spare] if len(self._steps) % 2 else [spare, out[k]]
            for at, step in enumerate(self._steps):
                shape = (-1, step.digits, step.left * width)
                into = places[at % 2]
                matmul(step.ahead[k], value.reshape(shape), into.reshape(shape))
                reduce(into, p)
                value = into
        return out.reshape(len(self.primes), self.size, *batch)

    def back(self, X: Floats, where: NDArray[np.intp] | None = None) -> Floats:
        """Return the coefficients (P, M, *batch) behind values X (P, M, *batch), or those at `where`, (P, len(where),
        *batch).

        Each step leaves out the digits that no wanted coefficient has.
        """
        batch, width = X.shape[2:], math.prod(X.shape[2:])
        out = np.empty((len(self.primes), self.size if where is None else len(where), width))
        if self._square and width <= MAX_SQUARE_POLYNOMIALS * (1 if where is None else 4):
            self._square.back(X.reshape(len(self.primes), self.size, width), where, out)
            return out.reshape(len(self.primes), -1, *batch)
        wanted = [self._wanted(step, where) for step in self._steps]
        gathered = np.zeros(1 if where is None else len(where), np.intp)
        for _, place, count in wanted:
            gathered = gathered * count + place
        for k, p in enumerate(self.primes.values):
            value, rest = X[k], width
            for step, (digits, _, count) in zip(reversed(self._steps), reversed(wanted), strict=True):
                matrices = step.back[k] if where is None else step.back[k][:, digits]
                made = np.empty((len(matrices), count, rest))
                matmul(matrices, value.reshape(-1, step.digits, rest), made)
                reduce(made, p)
                value = made
                rest *= count
            rows = value.reshape(-1, width)
            out[k] = rows if where is None else rows[gathered]
        return out.reshape(len(self.primes), -1, *batch)

    @staticmethod
    def _wanted(step: Step, where: NDArray[np.intp] | None) -> tuple[NDArray[np.intp], NDArray[np.intp], int]:
        """Find the digits that wanted coefficients have here, the place of each one's digit among them, and their
        number."""
        if where is None:
            return np.arange(step.digits), np.zeros(1, np.intp), step.digits
        digits, place = np.unique(where // step.left % step.digits, return_inverse=True)
        return digits, place, len(digits)


@functools.lru_cache(maxsize=32)
def transform(primes: Primes, size: int) -> Transform:
    """Make the transform of this size, once: it is public, and takes as long to make as some products."""
    return Transform(primes, size)


def multiplication_matrices(primes: Primes, polynomial: Floats, r: int) -> Floats:
    """(P, M, r, r): what multiplies by `polynomial` (P, N), or (N,) if the same for all primes, at each point.

    There the ring R has r elements, and the product with a polynomial g of it is an r x r matrix:

        (g h)_o = sum over i <= o of g_(o - i) h_i  +  y sum over i > o of g_(o - i + r) h_i
    """
    steps = transform(primes, DEGREE // r)
    values = steps.forward(polynomial.reshape(*polynomial.shape[:-1], DEGREE // r, r))
    turned = primes.reduce(values * steps.roots[..., None])
    below = np.arange(r)[:, None] - np.arange(r)
    return np.concatenate([values, turned], axis=-1)[..., below % r + r * (below < 0)]


def _digits(size: int) -> list[int]:
    """Powers of two, as equal as can be and 16 at most, whose product is `size`."""
    bits = size.bit_length() - 1
    steps = -(-bits // _RADIX)
    return [1 << (bits // steps + (at < bits % steps)) for at in range(steps)]


def _powers(p: int, order: int) -> Floats:
    """psi^k about zero, k < order, psi a root of exactly this order, a power of two."""
    psi = next(x for x in (pow(base, (p - 1) // order, p) for base in range(2, p)) if pow(x, order // 2, p) == p - 1)
    powers = np.ones(1, np.int64)
    while len(powers) < order:  # products of two residues of 24 bits are far below 2^63
        powers = np.concatenate([powers, powers * pow(psi, len(powers), p) % p])
    return np.where(powers > p // 2, powers - p, powers).astype(np.float64)
