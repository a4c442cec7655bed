"""Digest of a table's columns that does not depend on the order of rows and columns."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.data.register import Register

CHUNK = 1 << 21  # numbers at a time


class ContentDigest:
    """A digest of columns from blocks of rows in any order: sums over the rows, modulo 2^64, of a random weight of each
    row times each half of a value's 64 bits.

    Sums of other columns differ but for one case in 2^32 (multiply-shift hashing, Dietzfelbinger 1996). It guards
    against mistakes and not against people.
    """

    def __init__(self, columns: int) -> None:
        self._sums = np.zeros((columns, 2), np.uint64)

    def add(self, X: NDArray[Any], weights: NDArray[np.uint64]) -> None:
        """Add rows (k x d) to the sums, with their weights (k,); a row that does not count has weight 0."""
        halves = np.ascontiguousarray(X, np.float64).view(np.uint32).astype(np.uint64)
        self._sums += np.einsum("i,ij->j", weights, halves).reshape(-1, 2)

    def digest(self) -> str:
        """32 hex digits."""
        columns = sorted(column.astype("<u8").tobytes() for column in self._sums)
        return hashlib.sha256(b"".join(columns)).hexdigest()[:32]


def row_weights(register: Register) -> NDArray[np.uint64]:
    """Draw the random numbers (n,), tied to the ids of the rows, that weigh the rows of a table in `ContentDigest`."""
    return register.numbers("content")
