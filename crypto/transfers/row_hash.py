"""A tweakable correlation-robust hash of blocks, by fixed-key AES."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from securevfl.crypto.share_ring import Words
from securevfl.errors import CryptoError

BLOCK_WORDS = 2  # uint64 in a block of AES


class RowHash:
    """H under one public key of 16 bytes."""

    def __init__(self, key: bytes) -> None:
        if len(key) != 16:
            raise CryptoError(f"row hash: a key of 16 bytes was expected, {len(key)} came")
        self.key = key
        self._permutation = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305

    def __call__(self, x: Words, tweak: Words) -> Words:
        """H(x, tweak) (.., 2) for blocks x (.., 2); tweak (.., 2) broadcasts to the shape of x."""
        inner = self._permute(x)
        outer = self._permute(inner ^ tweak)
        outer ^= inner
        return outer

    def _permute(self, blocks: Words) -> Words:
        blocks = np.ascontiguousarray(blocks, "<u8")
        out = np.empty(blocks.nbytes + 15, np.uint8)
        self._permutation.update_into(blocks.reshape(-1).view(np.uint8).data, out.data)
        return out[: blocks.nbytes].view("<u8").reshape(blocks.shape).astype(np.uint64, copy=False)


def tweaks(first: int, count: int, purpose: int) -> Words:
    """Return the tweaks (count, 2) of rows: their numbers, from `first` on, and a purpose."""
    out = np.empty((count, BLOCK_WORDS), np.uint64)
    out[:, 0] = np.arange(first, first + count, dtype=np.uint64)
    out[:, 1] = purpose
    return out
