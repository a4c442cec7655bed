"""Exact products of matrices of residues at all points of a transform."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel.residues import Primes, matmul

_CACHED = 1 << 17  # entries of a factor that are widened at a time

_ENTRIES, _POINTS = 8, 1024  # of a product, for `_few`


Residues = NDArray[np.float32] | Floats


def multiply_residues(primes: Primes, left: Residues, right: Residues) -> Floats:
    """Residues (P, M, m, F) of left (P, M, m, B) times right (P, M, B, F), reduced."""
    stretches = (slice(start, start + primes.terms) for start in range(0, left.shape[-1], primes.terms))
    parts = (primes.reduce(_stretch(left[..., stretch], right[..., stretch, :])) for stretch in stretches)
    return functools.reduce(lambda total, part: primes.reduce(total + part), parts)


def add_product(
    primes: Primes, total: Floats | None, terms: int, left: Residues, right: Residues
) -> tuple[Floats, int]:
    """`total`, in which there are `terms` products, with left (P, M, m, B) times right (P, M, B, F) added; reduced only
    where the sum might not stay exact otherwise. And how many products are in it now."""
    most, count = primes.terms - 1, left.shape[-1]  # one is left for what is added before the last reduction
    if count > most:
        part, count = multiply_residues(primes, left, right), 1
    else:
        part = _stretch(left, right)
    if total is None:
        return part, count
    if terms + count > most:
        primes.reduce(total)
        terms = 1
        if count + 1 > most:
            primes.reduce(part)
            count = 1
    total += part
    return total, terms + count


def stack_halves(first: Floats, second: Floats, F: int) -> Floats:
    """(P, M, m, B) of first over second, (P, M, some, B) each, in the order of memory that products with F columns
    want."""
    (P, M, above, B), m = first.shape, first.shape[2] + second.shape[2]
    out = np.empty((P, B, m, M)).transpose(0, 3, 2, 1) if _few(M, m, F) else np.empty((P, M, m, B))
    out[:, :, :above], out[:, :, above:] = first, second
    return out


def _few(M: int, m: int, F: int) -> bool:
    """Whether matrices are so small, and points so many, that calls of a BLAS cost more than what they compute."""
    return m * F <= _ENTRIES and M >= _POINTS


def _stretch(left: Residues, right: Residues) -> Floats:
    P, M, m, B = left.shape
    F = right.shape[-1]
    if _few(M, m, F):
        return _by_points(left, right)
    out = np.empty((P, M, m, F))
    step = max(1, _CACHED // (B * max(m, F)))
    for k in range(P):
        for start in range(0, M, step):
            points = slice(start, start + step)
            one, other = (side[k, points].astype(np.float64, copy=False) for side in (left, right))
            matmul(one, other, out[k, points])
    return out


def _by_points(left: Residues, right: Residues) -> Floats:
    """Compute the same where matrices are small and points many: an entry of all points at a time."""
    one = np.ascontiguousarray(left.transpose(0, 3, 2, 1), np.float64)[:, :, :, None]  # (P, B, m, 1, M)
    other = np.ascontiguousarray(right.transpose(0, 2, 3, 1), np.float64)[:, :, None]  # (P, B, 1, F, M)
    total: Floats = one[:, 0] * other[:, 0]
    spare = np.empty_like(total) if one.shape[1] > 1 else total
    for b in range(1, one.shape[1]):
        np.multiply(one[:, b], other[:, b], out=spare)
        total += spare
    return np.ascontiguousarray(total.transpose(0, 3, 1, 2))
