"""The public functions of a vector OLE (vole.py), which both parties derive from the public coin of a session.

They are the functions that compute the children of a tree node, the hash that turns results of oblivious transfers
into keys, and the linear map M. M compresses N elements (the "places", leaves of trees) to fewer pseudorandom elements
(the "outcomes"). Elements of GF(2^128) are pairs of 64-bit words, and a sum is an XOR.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from securevfl.crypto.key_derivation import derive_key
from securevfl.crypto.share_ring import Words
from securevfl.crypto.transfers.row_hash import RowHash, tweaks
from securevfl.crypto.transfers.vole_pieces import CODE_WEIGHT, ELEMENT_BYTES, VoleSize

_OUTCOMES_AT_ONCE = 1 << 13

NODES, _KEYS = "vector OLE trees", 3


class VolePublic:
    """The public functions of a session, with keys that both parties derive from its coin.

    Args:
        coin: 32 public bytes that no other session uses.
    """

    def __init__(self, coin: bytes) -> None:
        self.coin = coin
        keys = [derive_key(coin, NODES, side)[:16] for side in range(2)]
        self._sides = [Cipher(algorithms.AES(key), modes.ECB()).encryptor() for key in keys]  # noqa: S305
        self.hash = RowHash(derive_key(coin, NODES, "rows")[:16])
        self._map = derive_key(coin, NODES, "map")[:16]

    def children(self, nodes: Words, out: NDArray[np.uint8]) -> Words:
        """Compute the children of all L nodes of a level, for several trees at once.

        Args:
            nodes: the nodes (L, trees, 2).
            out: buffer for the children and 16 more bytes.

        Returns:
            The left and the right children (2, L, trees, 2), which are stored at the start of the buffer.
        """
        octets, half = nodes.reshape(-1).view(np.uint8).data, nodes.nbytes
        for number, side in enumerate(self._sides):
            side.update_into(octets, out[number * half : (number + 1) * half + ELEMENT_BYTES].data)
        children = out[: 2 * half].view(np.uint64).reshape(2, *nodes.shape)
        children ^= nodes
        return children

    def keys(self, rows: Words, first: int) -> Words:
        """Hash results of oblivious transfers (n, 2), which are numbered from `first` on, to keys (n, 2)."""
        return self.hash(rows, tweaks(first, len(rows), _KEYS))

    def challenge(self, number: int, request: bytes, answer: bytes) -> bytes:
        """Return the challenge (32 bytes) for the check of a piece: a hash of its number and of messages 1 and 2."""
        digests = (hashlib.sha256(message).digest() for message in (request, answer))
        return hashlib.sha256(b"".join([self.coin, number.to_bytes(8, "little"), *digests])).digest()

    def map(self, number: int, size: VoleSize, *vectors: Words) -> list[Words]:
        """Multiply vectors by the linear map M, which differs from piece to piece.

        Args:
            number: number of the piece.
            size: numbers of outcomes, trees and levels of the piece.
            *vectors: vectors (N, 2), which are overwritten.

        Returns:
            The product (outcomes, 2) for each vector.
        """
        for vector in vectors:
            np.bitwise_xor.accumulate(vector, axis=0, out=vector)
        sums = [vector.view(np.complex128)[:, 0] for vector in vectors]
        products = [np.zeros((size.outcomes, 2), np.uint64) for _ in vectors]
        for start, places in self._places(number, size):
            for row in places:
                for out, partial_sums in zip(products, sums, strict=True):
                    chunk = out[start : start + len(row)]
                    chunk ^= np.take(partial_sums, row, mode="clip").view(np.uint64).reshape(-1, 2)
        return products

    def _places(self, number: int, size: VoleSize) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield, for k outcomes at a time, the number of the first one and 21 random places for each (21, k).

        A place is a random number of 32 bits, times N / 2^32.
        """
        stream = Cipher(algorithms.AES(self._map), modes.CTR(number.to_bytes(8, "big") + bytes(8))).encryptor()
        zeros = bytes(4 * CODE_WEIGHT * _OUTCOMES_AT_ONCE)
        for start in range(0, size.outcomes, _OUTCOMES_AT_ONCE):
            count = min(_OUTCOMES_AT_ONCE, size.outcomes - start)
            drawn = np.frombuffer(stream.update(zeros), "<u4").astype(np.uint64).reshape(CODE_WEIGHT, _OUTCOMES_AT_ONCE)
            drawn *= np.uint64(size.places)
            drawn >>= np.uint64(32)
            yield start, drawn[:, :count].view(np.int64)
