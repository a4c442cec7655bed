"""A fast hash for oblivious transfers, which hides how its inputs are related.

H(x, i) = pi(pi(x) ^ i) ^ pi(x) maps a block x and a number i, the tweak, to a block; a block has 128 bits and is stored
as two words of 64 bits. ^ is XOR, and pi is a public permutation: AES-128 under a key that both parties derive for
their session. Even if many inputs are known to be x and x ^ D with the same secret D, the outputs look random, provided
that no pair (x, i) repeats. This property is called tweakable circular correlation robustness (Guo, Katz, Wang, Yu
2020, "Efficient and secure multiparty computation from fixed-key block ciphers", section 7.4). A hash with just one
call of pi does not have it, because different tweaks would give related outputs (section 7.1 of the paper).
"""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from securevfl.crypto.share_ring import Words
from securevfl.errors import CryptoError

BLOCK_WORDS = 2
"""Words of 64 bits in a block of AES."""


class RowHash:
    """The hash function H, with one public AES key.

    Args:
        key: the AES key of 16 bytes.

    Raises:
        CryptoError: if the key has another length.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != 16:
            raise CryptoError(
                f"the key of a row hash has {len(key)} bytes instead of 16",
                "derive a key of 16 bytes",
                code="SVFL-CRYPTO-KEY",
            )
        self.key = key
        self._permutation = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305

    def __call__(self, x: Words, tweak: Words) -> Words:
        """Return H(x, tweak) for each pair of blocks x and `tweak` (.., 2), which are broadcast to one shape."""
        inner = self._permute(x)
        if inner.shape[-2:-1] == (1,):  # XOR of arrays of one shape is much faster than with a broadcast pair of words
            inner = np.repeat(inner, tweak.shape[-2], axis=-2)
        outer = self._permute(inner ^ tweak)
        outer ^= inner
        return outer

    def _permute(self, blocks: Words) -> Words:
        blocks = np.ascontiguousarray(blocks, "<u8")
        out = np.empty(blocks.nbytes + 15, np.uint8)
        self._permutation.update_into(blocks.reshape(-1).view(np.uint8).data, out.data)
        return out[: blocks.nbytes].view("<u8").reshape(blocks.shape).astype(np.uint64, copy=False)


def tweaks(first: int, count: int, purpose: int) -> Words:
    """Return tweaks (count, 2): consecutive numbers from `first` on, and the number `purpose` in the second word."""
    out = np.empty((count, BLOCK_WORDS), np.uint64)
    out[:, 0] = np.arange(first, first + count, dtype=np.uint64)
    out[:, 1] = purpose
    return out
