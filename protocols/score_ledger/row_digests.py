"""Keyed digests of rows, by which a score ledger knows them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import Stretch
from securevfl.data.id_keys import order_by_value

COMMITMENT = 16  # bytes

DIGEST = 16  # bytes

CHUNK = 65_536  # rows that are noted at a time


def contents_of(X: Floats, key: bytes) -> list[bytes]:
    octets = np.ascontiguousarray(X, "<f8") + 0.0  # one zero
    return [hashlib.blake2b(row.tobytes(), digest_size=DIGEST, key=key).digest() for row in octets]


def digests_of(stretch: Stretch, key: bytes) -> bytes:
    """Return the digests of rows where they lie, behind each other."""
    return b"".join(digest for _, X in stretch.blocks() for digest in contents_of(X, key))


def _rising(pieces: Iterable[Sequence[bytes]]) -> Iterator[list[bytes]]:
    """Yield digests that come in pieces in rising order, some at a time: tables are filled from end to end by them."""
    keys = np.frombuffer(b"".join(map(b"".join, pieces)), np.uint8).reshape(-1, DIGEST)
    order = order_by_value(keys)
    for at in range(0, len(order), CHUNK):
        whole = keys[order[at : at + CHUNK]].tobytes()
        yield [whole[start : start + DIGEST] for start in range(0, len(whole), DIGEST)]


def _salt(each: bytes) -> bytes:
    return hashlib.blake2b(each, digest_size=hashlib.blake2b.SALT_SIZE).digest()
