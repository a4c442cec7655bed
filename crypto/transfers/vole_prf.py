"""An oblivious PRF from vector OLE: one end evaluates F on the keys it has stored, the other holds F.

Rindal, Schoppmann 2021 ("VOLE-PSI") and Raghuraman, Rindal 2022 ("Blazing fast PSI from improved OKVS and subfield
VOLE"), over GF(2^128). h hashes a key to the field; [V](x) is what a store with the table V answers to x (okvs.py), a
sum of some of its rows. From a vector OLE as long as the store: the evaluator has a and c, the holder Delta and b,
with c = b + a Delta (vole.py).

    evaluator   P: a store of x -> h(x);  sends its seed and d = P + a
    F(x)        holder: Hash([b](x) + ([d](x) + h(x)) Delta, x);  evaluator, for a key it has stored: Hash([c](x), x)

d is uniform to the holder as a is. Both hash the same where [P](x) = h(x), as [b] + [d] Delta = [c] + [P] Delta. For
any other key the holder's has a multiple of Delta more, which is unknown to the evaluator: noise to it, whatever d it
sent. How many keys it can have stored is bounded by the slots (docs/proof.md).

h(x) = pi(x) + x. Hash(z, x) is H of ot_rows.py, tweaked by the key: 32 bytes as two blocks, for x and for x with its
highest bit changed, which no key has set (crypto/curve.py).
"""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from securevfl.crypto.key_derivation import derive_key
from securevfl.crypto.share_ring import Words
from securevfl.crypto.transfers import okvs
from securevfl.crypto.transfers.binary_field import Multiplier
from securevfl.crypto.transfers.row_hash import RowHash

_LAST = np.array([0, 1 << 63], "<u8").astype(np.uint64)

_KEYS_AT_ONCE = 1 << 14


class PrfHash:
    """h and Hash under the coin (32 bytes, public) of a session."""

    def __init__(self, coin: bytes) -> None:
        self._hash = RowHash(derive_key(coin, "vector OLE PRF", "hash")[:16])
        key = derive_key(coin, "vector OLE PRF", "target")[:16]
        self._target = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305

    def target(self, keys: Words) -> Words:
        """h (n, 2) of keys (n, 2)."""
        octets = np.ascontiguousarray(keys).reshape(-1).view(np.uint8).data
        return np.frombuffer(self._target.update(octets), np.uint64).reshape(-1, 2) ^ keys

    def values(self, sums: Words, keys: Words) -> Words:
        """Hash (n, 4) of sums (n, 2) and keys (n, 2)."""
        out = np.empty((len(keys), 4), np.uint64)
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            z, x = sums[start : start + _KEYS_AT_ONCE], keys[start : start + _KEYS_AT_ONCE]
            out[start : start + _KEYS_AT_ONCE, :2] = self._hash(z, x)
            out[start : start + _KEYS_AT_ONCE, 2:] = self._hash(z, x ^ _LAST)
        return out


def evaluate_stored(hashing: PrfHash, seed: bytes, c: Words, keys: Words) -> Words:
    """F (n, 4) on n stored keys (n, 2), at the evaluator."""
    return hashing.values(okvs.decode(seed, keys, c)[0], keys)


def evaluate_any(hashing: PrfHash, seed: bytes, b: Words, d: Words, times: Multiplier, keys: Words) -> Words:
    """F (n, 4) on any n keys (n, 2), at the holder; times: by Delta."""
    sums, asked = okvs.decode(seed, keys, b, d)
    asked ^= hashing.target(keys)
    sums ^= times(asked)
    return hashing.values(sums, keys)
