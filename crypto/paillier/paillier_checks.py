"""Check columns: secret combinations of the columns of J that detect changes of decrypted values.

A key holder decrypts the products of the columns of J with its g, and could return other values. The evaluator
therefore adds two check columns to J. For each it draws a secret prime l, and a secret weight w_j, uniform below l, for
every column x_j of J (as integers):

    check column = (sum over j of w_j * x_j) modulo l, in (-l / 2, l / 2)

Its entries need no more bits than those of J. A check column is multiplied, blinded and decrypted like the columns of
J, so the holder cannot distinguish it. Decrypted values are exact. So the value v of the check and the values v_j of
the columns must satisfy v = sum over j of w_j * v_j modulo l. If the holder changes a value by Delta, and Delta is not
a multiple of l, only one of l weights satisfies this; docs/proof.md has the probabilities.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import gmpy2
import numpy as np

from securevfl.crypto.paillier.fixed_point_integers import Ints
from securevfl.crypto.secret import Secret

PAILLIER_CHECKS = 2
"""Number of check columns."""

MAX_CHECK_PRIME_BITS = 30
"""Largest number of bits of a prime l, so that products of two numbers below l fit into 64 bits."""


class PaillierChecks(Secret):
    """The secret primes and weights of the check columns.

    Args:
        d: number of columns of J.
        column_bits: number of bits of the entries of J as integers.
    """

    __slots__ = ("_primes", "_weights")

    def __init__(self, d: int, column_bits: int) -> None:
        bits = min(column_bits + 1, MAX_CHECK_PRIME_BITS)
        self._primes = [_prime(bits) for _ in range(PAILLIER_CHECKS)]
        self._weights = [np.array([_below(p) for _ in range(d)], np.int64) for p in self._primes]

    def columns(self, ints: Ints) -> Ints:
        """Return the check columns (n, PAILLIER_CHECKS) for J given as integers (n, d)."""
        checks = np.empty((len(ints), PAILLIER_CHECKS), np.int64)
        for number, (p, weights) in enumerate(zip(self._primes, self._weights, strict=True)):
            total = np.zeros(len(ints), np.int64)
            for column, weight in zip(ints.T, weights, strict=True):
                total = (total + column % p * weight) % p
            checks[:, number] = np.where(total > p // 2, total - p, total)
        return checks

    def fits(self, opened: Sequence[int]) -> bool:
        """Return whether decrypted values satisfy the equations of the checks.

        `opened` contains the values for one column of g: first those of the columns of J, then those of the checks.
        """
        values, d = opened[:-PAILLIER_CHECKS], len(opened) - PAILLIER_CHECKS
        for p, weights, check in zip(self._primes, self._weights, opened[d:], strict=True):
            if (sum(v * w for v, w in zip(values, weights.tolist(), strict=True)) - check) % p:
                return False
        return True


def _prime(bits: int) -> int:
    """Draw a secret prime, uniform among all primes with this number of bits."""
    while True:
        number = _below(1 << bits - 1) | 1 << bits - 1
        if gmpy2.is_prime(number):
            return number


def _below(limit: int) -> int:
    """Draw a secret number below `limit`, which is uniform up to a statistical distance of 2^-160."""
    return int.from_bytes(secrets.token_bytes(24), "little") % limit
