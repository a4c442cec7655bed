"""Exact products of matrices of residues: one small matrix product for each of P primes and each of M points.

Polynomials are multiplied by their values at M points (ntt.py), and residues are integers modulo primes in floats
(residues.py). At each point, a left factor (m, B) is multiplied by a right factor (B, F). If a sum would have more
products than float64 can add exactly (`Primes.terms`), it is divided into several sums, which are reduced before they
are added. Factors may be in float32, which represents residues of 24 bits exactly; they are converted to float64 a few
points at a time.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel.residues import Primes, matmul

_WIDENED_ENTRIES = 1 << 17  # entries of a factor that are converted to float64 at a time

_MAX_ENTRIES, _MIN_POINTS = 8, 1024  # products of up to 8 entries at 1,024 or more points are faster without BLAS


Residues = NDArray[np.float32] | Floats


def multiply_residues(primes: Primes, left: Residues, right: Residues) -> Floats:
    """Return the reduced products (P, M, m, F) of left (P, M, m, B) and right (P, M, B, F)."""
    sums = (slice(start, start + primes.terms) for start in range(0, left.shape[-1], primes.terms))
    parts = (primes.reduce(_product(left[..., terms], right[..., terms, :])) for terms in sums)
    return functools.reduce(lambda total, part: primes.reduce(total + part), parts)


def add_product(
    primes: Primes, total: Floats | None, terms: int, left: Residues, right: Residues
) -> tuple[Floats, int]:
    """Add matrix products of residues to a total, and reduce it only if the sum might not be exact otherwise.

    Args:
        primes: the prime moduli: a number is stored as its remainder modulo each of them.
        total: the total (P, M, m, F), which is changed in place; None for zero.
        terms: number of products of two residues that the total has added up since its last reduction.
        left: residues (P, M, m, B).
        right: residues (P, M, B, F).

    Returns:
        The new total, and the new number of products in it.
    """
    limit, count = primes.terms - 1, left.shape[-1]  # the total itself counts as one of the terms after a reduction
    if count > limit:
        product, count = multiply_residues(primes, left, right), 1
    else:
        product = _product(left, right)
    if total is None:
        return product, count
    if terms + count > limit:
        primes.reduce(total)
        terms = 1
        if count + 1 > limit:
            primes.reduce(product)
            count = 1
    total += product
    return total, terms + count


def stack_halves(first: Floats, second: Floats, F: int) -> Floats:
    """Stack two arrays along the axis of rows, in the memory order that is fastest for products with F columns.

    Args:
        first: the upper rows (P, M, k, B).
        second: the lower rows (P, M, m - k, B).
        F: number of columns of the other factor.

    Returns:
        The rows (P, M, m, B).
    """
    (P, M, above, B), m = first.shape, first.shape[2] + second.shape[2]
    out = np.empty((P, B, m, M)).transpose(0, 3, 2, 1) if _is_small(M, m, F) else np.empty((P, M, m, B))
    out[:, :, :above], out[:, :, above:] = first, second
    return out


def _is_small(M: int, m: int, F: int) -> bool:
    """Return whether small matrices at many points are multiplied faster without BLAS calls."""
    return m * F <= _MAX_ENTRIES and M >= _MIN_POINTS


def _product(left: Residues, right: Residues) -> Floats:
    P, M, m, B = left.shape
    F = right.shape[-1]
    if _is_small(M, m, F):
        return _by_points(left, right)
    out = np.empty((P, M, m, F))
    step = max(1, _WIDENED_ENTRIES // (B * max(m, F)))
    for k in range(P):
        for start in range(0, M, step):
            points = slice(start, start + step)
            one, other = (side[k, points].astype(np.float64, copy=False) for side in (left, right))
            matmul(one, other, out[k, points])
    return out


def _by_points(left: Residues, right: Residues) -> Floats:
    """Compute the products of small matrices with elementwise operations over all points, without BLAS."""
    one = np.ascontiguousarray(left.transpose(0, 3, 2, 1), np.float64)[:, :, :, None]  # (P, B, m, 1, M)
    other = np.ascontiguousarray(right.transpose(0, 2, 3, 1), np.float64)[:, :, None]  # (P, B, 1, F, M)
    total: Floats = one[:, 0] * other[:, 0]
    spare = np.empty_like(total) if one.shape[1] > 1 else total
    for b in range(1, one.shape[1]):
        np.multiply(one[:, b], other[:, b], out=spare)
        total += spare
    return np.ascontiguousarray(total.transpose(0, 3, 1, 2))
