"""The register of a table: its ids, and pseudorandom numbers that are derived from them, one for each row.

These numbers select training rows and batches (`securevfl.data.schedule`). Since they depend only on the set of ids,
all parties and all jobs select the same rows, in whatever order a table has them. In a table without ids, row numbers
take the place of ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.key_derivation import derive_key
from securevfl.data.id_keys import Keys, order_by_value, stable_order

Rows = NDArray[np.intp]
"""Row numbers (k,)."""

KEYS_PER_READ = 1 << 16
"""Number of rows whose digests are read at a time."""


@dataclass(frozen=True)
class Register:
    """The ids of a table's rows, and a key that is derived from them.

    Attributes:
        rows: the number of rows.
        key: digest (32 bytes) of the set of ids. It is equal at all parties of an aligned table, and unknown to anyone
            who lacks one of the ids. Tables without ids and with the same number of rows have the same key.
        order: row numbers (n,) sorted by the digests of the ids; None without ids.
        ids: returns the digests of all ids in pieces (k, ID_DIGEST), in any order; None without ids.
    """

    rows: int
    key: bytes = field(repr=False)
    order: Rows | None = field(default=None, repr=False, compare=False)
    ids: Callable[[], Iterator[Keys]] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of_ids(cls, keys: Keys) -> Register:
        """Create the register of rows with these digests of ids (n, ID_DIGEST), all of them different."""
        order = order_by_value(keys)
        key = hashlib.sha256(b"securevfl ids" + keys[order].tobytes()).digest()

        def pieces() -> Iterator[Keys]:
            return (keys[start : start + KEYS_PER_READ] for start in range(0, len(keys), KEYS_PER_READ))

        return cls(len(keys), key, order, pieces)

    @classmethod
    def of_numbers(cls, rows: int) -> Register:
        """Create the register of a table of `rows` rows without ids."""
        return cls(rows, hashlib.sha256(b"securevfl rows %d" % rows).digest())

    @property
    def name(self) -> str:
        """The name of the table in a party's ledger of disclosures: 32 hexadecimal digits, which hide the key."""
        return derive_key(self.key, "name of a table").hex()[:32]

    def random_words(self, *label: str | int) -> NDArray[np.uint64]:
        """Return a pseudorandom 64-bit number for each row (n,), which depends on the row's id and the key.

        Args:
            *label: the purpose of the numbers. Numbers for different purposes are independent.

        Returns:
            The numbers (n,).
        """
        stream = hashlib.shake_256(derive_key(self.key, "numbers of rows", *label)).digest(8 * self.rows)
        words = np.frombuffer(stream, "<u8").astype(np.uint64, copy=False)
        if self.order is None:
            return words
        words_of_rows = np.empty_like(words)
        words_of_rows[self.order] = words
        return words_of_rows

    def permutation(self, *label: str | int) -> Rows:
        """Return all rows (n,) in a pseudorandom order for this purpose (see `random_words`)."""
        return stable_order(self.random_words(*label))
