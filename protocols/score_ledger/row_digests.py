"""Keyed digests of rows, by which a score ledger knows them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import RowChunk
from securevfl.data.id_keys import order_by_value

COMMITMENT_BYTES = 16  # bytes

DIGEST_BYTES = 16  # bytes

DIGEST_CHUNK_ROWS = 65_536  # rows that are noted at a time


def content_digests(X: Floats, key: bytes) -> list[bytes]:
    octets = np.ascontiguousarray(X, "<f8") + 0.0  # one zero
    return [hashlib.blake2b(row.tobytes(), digest_size=DIGEST_BYTES, key=key).digest() for row in octets]


def block_digests(stretch: RowChunk, key: bytes) -> bytes:
    """Return the digests of rows where they lie, behind each other."""
    return b"".join(digest for _, X in stretch.blocks() for digest in content_digests(X, key))


def sorted_digests(pieces: Iterable[Sequence[bytes]]) -> Iterator[list[bytes]]:
    """Yield digests that come in pieces in rising order, some at a time: tables are filled from end to end by them."""
    keys = np.frombuffer(b"".join(map(b"".join, pieces)), np.uint8).reshape(-1, DIGEST_BYTES)
    order = order_by_value(keys)
    for at in range(0, len(order), DIGEST_CHUNK_ROWS):
        whole = keys[order[at : at + DIGEST_CHUNK_ROWS]].tobytes()
        yield [whole[start : start + DIGEST_BYTES] for start in range(0, len(whole), DIGEST_BYTES)]


def id_salt(each: bytes) -> bytes:
    return hashlib.blake2b(each, digest_size=hashlib.blake2b.SALT_SIZE).digest()
