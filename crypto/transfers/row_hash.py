"""A tweakable correlation-robust hash of blocks, by fixed-key AES.

H(x, i) = pi(pi(x) ^ i) ^ pi(x) is a tweakable circular correlation-robust hash of 128 bits (Guo, Katz, Wang, Yu 2020,
"Efficient and secure multiparty computation from fixed-key block ciphers", section 7.4). pi is a public random
permutation, here AES-128 under a key that both parties derive for their session. Inputs may be related by secrets of
128 bits (x and x ^ D), and tweaks may be anything, provided that no pair (x, i) repeats. With only one call,
pi(sigma(x) ^ i), tweaks would shift outputs into one another (section 7.1 of the paper).
"""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from securevfl.crypto.share_ring import Words
from securevfl.errors import CryptoError

BLOCK_WORDS = 2
"""Words of 64 bits in a block of AES."""


class RowHash:
    """H under one public key.

    Args:
        key: 16 bytes.

    Raises:
        CryptoError: if the key has another length.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != 16:
            raise CryptoError(
                f"the key of a row hash has {len(key)} bytes instead of 16", "derive one", code="SVFL-CRYPTO-KEY"
            )
        self.key = key
        self._permutation = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305

    def __call__(self, x: Words, tweak: Words) -> Words:
        """Return H(x, tweak) (.., 2) for blocks x (.., 2); tweak (.., 2) is broadcast to the shape of x."""
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
    """Return the tweaks (count, 2) of rows: their numbers from `first` on, and a purpose."""
    out = np.empty((count, BLOCK_WORDS), np.uint64)
    out[:, 0] = np.arange(first, first + count, dtype=np.uint64)
    out[:, 1] = purpose
    return out
