"""Check whether the BLAS of this machine computes as the kernel needs it: exactly, and without skipping zeros.

Any BLAS that adds products of IEEE doubles, in whatever order and with or without fused multiplication, is exact on
residues. A BLAS that emulates doubles with fewer bits is not, and neither is one that adds entries before it multiplies
(Strassen). A BLAS that skips zeros is exact but needs less time for them, so its times would reveal data. The check
detects it because it does not multiply zero by not-a-number.
"""

from __future__ import annotations

import functools

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel.residues import Primes, matmul

SEAL_OPTION = 'library = "seal", at all parties'
"""The option for machines without a suitable BLAS."""

BLAS_REMEDY = f"install numpy from its wheels, which include OpenBLAS, or set {SEAL_OPTION}"
"""What to do if `blas_problem` is not empty."""

_MAX_TERMS = 512

_SHAPES = ((32, 16), (1, 1), (16, 48))  # rows and columns of the tested products


@functools.cache
def blas_problem() -> str:
    """Describe the fault of this machine's BLAS, or return an empty text; the result is cached."""
    return find_blas_problem()


def find_blas_problem() -> str:
    """Test the BLAS of numpy and describe its fault, or return an empty text; `blas_problem` caches the result."""
    for primes in (Primes(24, 3), Primes(23, 4), Primes(20, 4)):
        terms = min(primes.terms, _MAX_TERMS)
        for rows, columns in _SHAPES:
            if not all(_exact(primes, rows, terms, columns, signs) for signs in (1, 0, -1)):
                return "the BLAS of numpy does not add products of integers below 2^53 exactly"
    if not _takes_zeros():
        return "the BLAS of numpy skips products with zeros, so its times would reveal data"
    return ""


def _exact(primes: Primes, rows: int, terms: int, columns: int, signs: int) -> bool:
    """Return whether a product of the largest residues, of one sign or of mixed signs, equals that of integers."""
    largest = np.array([p // 2 + 4 for p in primes.values], np.int64)[:, None, None]
    terms_range = np.arange(terms)
    left = largest - np.outer(np.arange(rows), terms_range) % 3
    right = largest - np.outer(terms_range, np.arange(columns)) % 5
    if signs < 1:
        left = left * np.where(terms_range % 2 if signs else terms_range > -1, -1, 1)
    product = np.empty((len(primes), rows, columns))
    matmul(left.astype(np.float64), right.astype(np.float64), product)
    return bool((product.astype(np.int64) == left @ right).all())


def _takes_zeros() -> bool:
    for rows, columns in _SHAPES:
        sides: list[Floats] = [np.zeros((1, rows, 8)), np.zeros((1, 8, columns))]
        for nan in range(2):
            left, right = (side + (np.nan if k == nan else 0.0) for k, side in enumerate(sides))
            product = np.zeros((1, rows, columns))
            matmul(left, right, product)
            if not np.isnan(product).all():
                return False
    return True
