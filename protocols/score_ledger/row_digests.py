"""Keyed digests that identify rows in a score ledger: of ids, of a party's columns, and commitments to columns.

A score ledger is the part of a party's account (an SQLite file, `securevfl.account`) in which it records the scores of
its rows. The key of the digests is in the file. A commitment is a digest of a row's id and columns that a party sends,
so that others notice if the columns change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import RowChunk
from securevfl.data.id_keys import order_by_value

COMMITMENT_BYTES = 16
ROW_DIGEST_BYTES = 16
DIGEST_CHUNK_ROWS = 65_536


def number_rows(X: Floats) -> Floats:
    """Return the rows of X (n, d) in a form in which equal rows have equal bytes."""
    return np.ascontiguousarray(X, "<f8") + 0.0  # turns -0.0 into 0.0


def content_digests(X: Floats, key: bytes) -> list[bytes]:
    """Return a keyed digest of each row of X (n, d); equal rows have equal digests."""
    return [hashlib.blake2b(row.tobytes(), digest_size=ROW_DIGEST_BYTES, key=key).digest() for row in number_rows(X)]


def block_digests(chunk: RowChunk, key: bytes) -> bytes:
    """Return the concatenated digests of some rows. This function is sent to the process that stores these rows."""
    return b"".join(digest for _, X in chunk.blocks() for digest in content_digests(X, key))


def sorted_digests(batches: Iterable[Sequence[bytes]]) -> list[bytes]:
    """Return all digests in ascending order, concatenated in blocks of at most `DIGEST_CHUNK_ROWS`.

    SQLite inserts sorted rows fastest.
    """
    keys = np.frombuffer(b"".join(map(b"".join, batches)), np.uint8).reshape(-1, ROW_DIGEST_BYTES)
    order = order_by_value(keys)
    starts = range(0, len(order), DIGEST_CHUNK_ROWS)
    return [keys[order[start : start + DIGEST_CHUNK_ROWS]].tobytes() for start in starts]


def id_salt(row_id: bytes) -> bytes:
    """Return a salt for BLAKE2b that is computed from a row's id, so that equal columns have different commitments."""
    return hashlib.blake2b(row_id, digest_size=hashlib.blake2b.SALT_SIZE).digest()
