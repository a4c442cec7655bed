"""Digest of a table's columns, the same for every order of rows and columns; it detects that a table has changed."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.data.register import Register

MAX_CHUNK_VALUES = 1 << 21
"""Maximum number of values that are added to the digest at a time."""


class ContentDigest:
    """A digest of columns that is updated with blocks of rows in any order.

    Each row has a random weight. The digest contains, for each column, the sums modulo 2^64 over the rows of this
    weight times each half of a value's 64 bits. The sums of different columns are equal with probability 2^-32
    (multiply-shift hashing, Dietzfelbinger 1996). The digest detects mistakes; it does not resist deliberate
    manipulation.
    """

    def __init__(self, columns: int) -> None:
        self._sums = np.zeros((columns, 2), np.uint64)

    def add(self, X: NDArray[Any], weights: NDArray[np.uint64]) -> None:
        """Add rows (k, d) with their weights (k,). A row of weight 0 does not count."""
        halves = np.ascontiguousarray(X, np.float64).view(np.uint32).astype(np.uint64)
        self._sums += np.einsum("i,ij->j", weights, halves).reshape(-1, 2)

    def digest(self) -> str:
        """Return the digest of all rows that were added, as 32 hexadecimal digits."""
        columns = sorted(column.astype("<u8").tobytes() for column in self._sums)
        return hashlib.sha256(b"".join(columns)).hexdigest()[:32]


def digest_weights(register: Register) -> NDArray[np.uint64]:
    """Return the random weights (n,) of a table's rows in `ContentDigest`, which are derived from the ids."""
    return register.random_words("content")
