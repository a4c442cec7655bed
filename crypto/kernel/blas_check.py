"""A test of numpy's BLAS: it must multiply matrices of integers exactly, and must not skip zeros.

The encryption of this package (residues.py) uses products of integers below 2^53 in float64. A BLAS that adds products
of IEEE doubles is exact for them, in whatever order, with or without fused multiply-add. A BLAS that emulates doubles
with fewer bits is not exact, and neither is one that adds entries before it multiplies (Strassen's method). A BLAS that
skips zeros is exact but faster for them, so that computing times would reveal data. The test multiplies zero by
not-a-number: the result is a number only if zeros are skipped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel.residues import Primes, matmul

SEAL_OPTION = 'library = "seal", at all parties'
"""The option of a job that selects SEAL, for machines without a suitable BLAS."""

BLAS_REMEDY = f"install numpy from its wheels, which include OpenBLAS, or set {SEAL_OPTION}"
"""The remedy in error messages if `blas_problem` is not empty."""

_MAX_TERMS = 512  # largest number of terms in the sums of the tested products

_SHAPES = ((32, 16), (1, 1), (16, 48))  # numbers of rows and columns of the tested products


@functools.cache
def blas_problem() -> str:
    """Return a description of the fault of numpy's BLAS, or an empty text if it has none. The result is cached."""
    return find_blas_problem()


MatrixProduct = Callable[[Floats, Floats, Floats], object]
"""Multiplies stacks of matrices (p, n, k) and (p, k, m) and writes the products (p, n, m) to the third argument."""


def find_blas_problem(product: MatrixProduct = matmul) -> str:
    """Test numpy's BLAS, and return a description of its fault, or an empty text; `blas_problem` caches the result."""
    for primes in (Primes(24, 3), Primes(23, 4), Primes(20, 4)):
        terms = min(primes.terms, _MAX_TERMS)
        for rows, columns in _SHAPES:
            if not all(_exact(product, primes, rows, terms, columns, signs) for signs in (1, 0, -1)):
                return "numpy's BLAS does not multiply matrices of integers exactly"
    if not _takes_zeros(product):
        return "numpy's BLAS skips products with zeros, so its computing times would reveal data"
    return ""


def _exact(product: MatrixProduct, primes: Primes, rows: int, terms: int, columns: int, signs: int) -> bool:
    """Return whether float products of the largest possible numbers equal the products of the same integers.

    The entries of the right matrix are positive. Those of the left matrix are positive if `signs` is 1, negative if it
    is 0, and negative in every second column if it is -1.
    """
    largest = np.array([p // 2 + 4 for p in primes.values], np.int64)[:, None, None]
    terms_range = np.arange(terms)
    left = largest - np.outer(np.arange(rows), terms_range) % 3
    right = largest - np.outer(terms_range, np.arange(columns)) % 5
    if signs < 1:
        left = left * np.where(terms_range % 2 if signs else terms_range > -1, -1, 1)
    computed = np.empty((len(primes), rows, columns))
    product(left.astype(np.float64), right.astype(np.float64), computed)
    return bool((computed.astype(np.int64) == left @ right).all())


def _takes_zeros(product: MatrixProduct) -> bool:
    for rows, columns in _SHAPES:
        sides: list[Floats] = [np.zeros((1, rows, 8)), np.zeros((1, 8, columns))]
        for nan in range(2):
            left, right = (side + (np.nan if k == nan else 0.0) for k, side in enumerate(sides))
            computed = np.zeros((1, rows, columns))
            product(left, right, computed)
            if not np.isnan(computed).all():
                return False
    return True
