"""Check columns: secret combinations of the columns of J that detect changes of decrypted values.

For each of two secret primes l, every column x_j of J, as integers, has a weight w_j uniform below l:

    check    sum_j w_j x_j  modulo l, centred            not wider than a column of J

A check is multiplied, blinded and decrypted like the columns, so it is uniform to the key holder as well. Decrypted
values are exact, so v = sum_j w_j v_j modulo l holds for those of the columns and of the check. A change of a value by
Delta, which is not a multiple of l, is consistent with only one weight in l; docs/proof.md has the probabilities.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import gmpy2
import numpy as np

from securevfl.crypto.paillier.fixed_point_integers import Ints
from securevfl.crypto.secret import Secret

PAILLIER_CHECKS = 2
"""Number of checks."""

MAX_CHECK_PRIME_BITS = 30
"""Products of two residues then have at most 60 bits."""


class PaillierChecks(Secret):
    """The primes, and the weights of each column (PAILLIER_CHECKS, d).

    Args:
        d: number of columns.
        column_bits: bits of the encoded entries of J.
    """

    __slots__ = ("_primes", "_weights")

    def __init__(self, d: int, column_bits: int) -> None:
        bits = min(column_bits + 1, MAX_CHECK_PRIME_BITS)
        self._primes = [_prime(bits) for _ in range(PAILLIER_CHECKS)]
        self._weights = [np.array([_below(p) for _ in range(d)], np.int64) for p in self._primes]

    def columns(self, ints: Ints) -> Ints:
        """Return the check columns (n, PAILLIER_CHECKS) of J as integers (n, d)."""
        checks = np.empty((len(ints), PAILLIER_CHECKS), np.int64)
        for number, (p, weights) in enumerate(zip(self._primes, self._weights, strict=True)):
            total = np.zeros(len(ints), np.int64)
            for column, weight in zip(ints.T, weights, strict=True):
                total = (total + column % p * weight) % p
            checks[:, number] = np.where(total > p // 2, total - p, total)
        return checks

    def fits(self, opened: Sequence[int]) -> bool:
        """Return whether the decrypted values of one output of g, columns and then checks, are consistent."""
        values, d = opened[:-PAILLIER_CHECKS], len(opened) - PAILLIER_CHECKS
        for p, weights, check in zip(self._primes, self._weights, opened[d:], strict=True):
            if (sum(v * w for v, w in zip(values, weights.tolist(), strict=True)) - check) % p:
                return False
        return True


def _prime(bits: int) -> int:
    """Draw a prime of this size, uniform among all of them."""
    while True:
        number = _below(1 << bits - 1) | 1 << bits - 1
        if gmpy2.is_prime(number):
            return number


def _below(limit: int) -> int:
    """Draw a secret number below `limit`, uniform within 2^-160."""
    return int.from_bytes(secrets.token_bytes(24), "little") % limit
