"""Whether the BLAS at hand computes as the kernel needs: every sum of products of doubles exact, every term taken.

Any BLAS of IEEE doubles that adds up products, in whatever order, with or without fused multiplication, is exact on
residues. One that emulates doubles by fewer bits is not, nor one that saves products by adding entries up first
(Strassen). One that skips zeros is exact but takes less time for them, so that time would tell of data; it shows in
that zero times not-a-number is left out.
"""

from __future__ import annotations

import functools

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel.residues import Primes, matmul

SEAL_OPTION = 'library = "seal", at all parties'  # what to do where this machine can't be mended

_REMEDY = "install numpy from its wheels, which bring OpenBLAS"

_MOST_TERMS = 512

_SHAPES = ((32, 16), (1, 1), (16, 48))  # rows and columns of the products tried


@functools.cache
def blas_problem() -> str:
    """Why the kernel must not be used on this machine, and what to do; nothing if it may. Found once a process."""
    return find_blas_problem()


def find_blas_problem() -> str:
    """Test the BLAS of numpy and return what is wrong with it, or ""; `blas_problem` caches the result."""
    for primes in (Primes(24, 3), Primes(23, 4), Primes(20, 4)):
        terms = min(primes.terms, _MOST_TERMS)
        for rows, columns in _SHAPES:
            if not all(_exact(primes, rows, terms, columns, signs) for signs in (1, 0, -1)):
                return f"the BLAS of numpy here does not add up products of integers below 2^53 exactly; {_REMEDY}"
    if not _takes_zeros():
        return f"the BLAS of numpy here leaves out products with zeros, so its times tell of data; {_REMEDY}"
    return ""


def _exact(primes: Primes, rows: int, terms: int, columns: int, signs: int) -> bool:
    """Whether a product of the largest residues, all of one sign or of mixed ones, is what integers give."""
    largest = np.array([p // 2 + 4 for p in primes.values], np.int64)[:, None, None]
    places = np.arange(terms)
    left = largest - np.outer(np.arange(rows), places) % 3
    right = largest - np.outer(places, np.arange(columns)) % 5
    if signs < 1:
        left = left * np.where(places % 2 if signs else places > -1, -1, 1)
    made = np.empty((len(primes), rows, columns))
    matmul(left.astype(np.float64), right.astype(np.float64), made)
    return bool((made.astype(np.int64) == left @ right).all())


def _takes_zeros() -> bool:
    for rows, columns in _SHAPES:
        sides: list[Floats] = [np.zeros((1, rows, 8)), np.zeros((1, 8, columns))]
        for nan in range(2):
            each = [side + (np.nan if k == nan else 0.0) for k, side in enumerate(sides)]
            made = np.zeros((1, rows, columns))
            matmul(each[0], each[1], made)
            if not np.isnan(made).all():
                return False
    return True
