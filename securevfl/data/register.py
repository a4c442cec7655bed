"""A table's register: its rows in an order that the ids give, and a key that those who hold all ids have.

What is drawn by it (`securevfl.data.schedule`) goes with the ids: the same rows are drawn at every party, in every job,
in whatever order the rows stand. Without ids rows go by their numbers, and the key by how many there are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.key_derivation import derive_key
from securevfl.data.id_keys import Keys, order_by_value, rising

Rows = NDArray[np.intp]

PIECE = 1 << 16  # rows whose ids are read at a time


@dataclass(frozen=True)
class Register:
    """`rows` rows of a table, `order` the row numbers by rising digests of the ids (as they stand if None).

    `key` (32 bytes) is a digest of the set of ids: equal at all parties of an aligned table, and unknown to whoever
    lacks an id. It is the same for tables of as many rows where rows have no ids. `ids` gives the digests of all ids in
    pieces (k x ID_DIGEST), in any order; None without ids.
    """

    rows: int
    key: bytes = field(repr=False)
    order: Rows | None = field(default=None, repr=False, compare=False)
    ids: Callable[[], Iterator[Keys]] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of_ids(cls, keys: Keys) -> Register:
        """Make the register of rows with these digests of ids (n x ID_DIGEST), all of them different."""
        order = order_by_value(keys)
        key = hashlib.sha256(b"securevfl ids" + keys[order].tobytes()).digest()
        return cls(len(keys), key, order, lambda: (keys[at : at + PIECE] for at in range(0, len(keys), PIECE)))

    @classmethod
    def of_numbers(cls, rows: int) -> Register:
        """Make the register of a table of `rows` rows without ids."""
        return cls(rows, hashlib.sha256(b"securevfl rows %d" % rows).digest())

    @property
    def name(self) -> str:
        """What the table is called where a party keeps its books: 32 hex digits that do not lead back to the key."""
        return derive_key(self.key, "name of a table").hex()[:32]

    def numbers(self, *what: str | int) -> NDArray[np.uint64]:
        """Draw 64 random bits for each row (n,), determined by the row's id, the register's key and `what`."""
        stream = hashlib.shake_256(derive_key(self.key, "numbers of rows", *what)).digest(8 * self.rows)
        drawn = np.frombuffer(stream, "<u8").astype(np.uint64, copy=False)
        if self.order is None:
            return drawn
        numbers = np.empty_like(drawn)
        numbers[self.order] = drawn
        return numbers

    def drawn(self, *what: str | int) -> Rows:
        """All rows in an order of their own for each `what`."""
        return rising(self.numbers(*what))
