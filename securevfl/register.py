"""A table's register: its rows in an order that the ids give, and a key that those who hold all ids have.

What is drawn by it (`securevfl.schedule`) goes with the ids: the same rows are drawn at every party, in every job, in
whatever order the rows stand. Without ids rows go by their numbers, and the key by how many there are.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.prg import derive_key
from securevfl.ids import Keys, order_by_value

Rows = NDArray[np.intp]


@dataclass(frozen=True)
class Register:
    """`rows` rows of a table, `order` the row numbers by rising digests of the ids (as they stand if None).

    `key` (32 bytes) is a digest of the set of ids: equal at all parties of an aligned table, and unknown to whoever
    lacks an id. It is the same for tables of as many rows where rows have no ids.
    """

    rows: int
    key: bytes = field(repr=False)
    order: Rows | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of_ids(cls, keys: Keys) -> Register:
        """The register of rows with these digests of ids (n x ID_DIGEST), all different."""
        order = order_by_value(keys)
        return cls(len(keys), hashlib.sha256(b"securevfl ids" + keys[order].tobytes()).digest(), order)

    @classmethod
    def of_numbers(cls, rows: int) -> Register:
        """The register of so many rows without ids."""
        return cls(rows, hashlib.sha256(b"securevfl rows %d" % rows).digest())

    @property
    def name(self) -> str:
        """What the table is called where a party keeps its books: 32 hex digits that do not lead back to the key."""
        return derive_key(self.key, "name of a table").hex()[:32]
