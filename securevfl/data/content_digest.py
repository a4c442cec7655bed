"""Digest of a table's columns, with which a party notices that its table has changed.

The digest is the same for every order of the rows and columns. It detects accidental changes, not deliberate ones.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.data.register import Register

MAX_CHUNK_VALUES = 1 << 21
"""Maximum number of values that are added to the digest at a time."""


class ContentDigest:
    """A digest of all columns of a table, updated with one block of rows at a time, in any order.

    Each row has a random weight. For each column the digest contains two sums over the rows modulo 2^64: of the weight
    times the upper, and times the lower 32 bits of the value. Two different columns have equal sums with probability
    2^-32 (multiply-shift hashing, Dietzfelbinger 1996).
    """

    def __init__(self, columns: int) -> None:
        self._sums = np.zeros((columns, 2), np.uint64)

    def add(self, X: NDArray[Any], weights: NDArray[np.uint64]) -> None:
        """Add the values of some rows (k, d) with the rows' weights (k,). A row of weight 0 has no effect."""
        halves = np.ascontiguousarray(X, np.float64).view(np.uint32).astype(np.uint64)
        self._sums += np.einsum("i,ij->j", weights, halves).reshape(-1, 2)

    def digest(self) -> str:
        """Return the digest of all rows that were added, as 32 hexadecimal digits."""
        columns = sorted(column.astype("<u8").tobytes() for column in self._sums)
        return hashlib.sha256(b"".join(columns)).hexdigest()[:32]


def digest_weights(register: Register) -> NDArray[np.uint64]:
    """Return the random weight (n,) of each row for `ContentDigest`, derived from the rows' ids."""
    return register.random_words("content")
