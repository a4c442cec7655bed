"""Columns beside those of J that tell a passive party whether what was opened is what was decrypted.

Two secret primes l, and for each a weight w_j uniform below it for every column x_j of J as integers:

    check    sum_j w_j x_j  modulo l, about zero         no wider than a column of J

It is multiplied, blinded and opened as the columns are, so to the key holder it is uniform like them. What is opened
is exact, so v = sum_j w_j v_j modulo l holds for what the columns and the check open to. A value that was changed by
Delta, which is no multiple of l, fails it but for one weight in l; docs/proof.md has the probabilities.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import gmpy2
import numpy as np

from securevfl.crypto.paillier.fixed_point import Ints
from securevfl.crypto.secret import Secret

PAILLIER_CHECKS = 2

MAX_CHECK_PRIME_BITS = 30  # of a prime: products of two residues fit in 62 bits


class PaillierChecks(Secret):
    """The primes, and the weights of each column (CHECKS x d)."""

    __slots__ = ("_primes", "_weights")

    def __init__(self, d: int, column_bits: int) -> None:
        bits = min(column_bits + 1, MAX_CHECK_PRIME_BITS)
        self._primes = [_prime(bits) for _ in range(PAILLIER_CHECKS)]
        self._weights = [np.array([_below(p) for _ in range(d)], np.int64) for p in self._primes]

    def columns(self, ints: Ints) -> Ints:
        """Return the check columns (n x CHECKS) of J as integers (n x d)."""
        found = np.empty((len(ints), PAILLIER_CHECKS), np.int64)
        for place, (p, weights) in enumerate(zip(self._primes, self._weights, strict=True)):
            total = np.zeros(len(ints), np.int64)
            for column, weight in zip(ints.T, weights, strict=True):
                total = (total + column % p * weight) % p
            found[:, place] = np.where(total > p // 2, total - p, total)
        return found

    def fits(self, opened: Sequence[int]) -> bool:
        """Whether what the columns and then the checks open to, of one output of g, belongs together."""
        values, d = opened[:-PAILLIER_CHECKS], len(opened) - PAILLIER_CHECKS
        for p, weights, check in zip(self._primes, self._weights, opened[d:], strict=True):
            if (sum(v * w for v, w in zip(values, weights.tolist(), strict=True)) - check) % p:
                return False
        return True


def _prime(bits: int) -> int:
    """Return a prime of so many bits, uniform among all of them."""
    while True:
        number = _below(1 << bits - 1) | 1 << bits - 1
        if gmpy2.is_prime(number):
            return number


def _below(limit: int) -> int:
    """Return a secret number below `limit`, uniform to 2^-160."""
    return int.from_bytes(secrets.token_bytes(24), "little") % limit
