"""An oblivious PRF from vector OLE: the evaluator evaluates F on the keys it has stored, and the holder on any key.

Rindal, Schoppmann 2021 ("VOLE-PSI") and Raghuraman, Rindal 2022 ("Blazing fast PSI from improved OKVS and subfield
VOLE"), over GF(2^128). h hashes a key to the field. [V](x) is the value of x in a key-value store with the table V
(okvs.py), a sum of some of its rows. A vector OLE of the length of the store gives a and c to the evaluator, and Delta
and b to the holder, with c = b + a Delta (vole.py).

    evaluator   P: a store of x -> h(x);  sends its seed and d = P + a
    F(x)        holder: Hash([b](x) + ([d](x) + h(x)) Delta, x);  evaluator, for a stored key: Hash([c](x), x)

d is uniform to the holder because a is. Both hash the same value if [P](x) = h(x), because [b] + [d] Delta = [c] + [P]
Delta. For any other key, the holder's value has an additional multiple of Delta, which the evaluator does not know: it
is noise to the evaluator, whatever d it has sent. The slots bound the number of keys that it can have stored
(docs/proof.md).

h(x) = pi(x) + x. Hash(z, x) is H of row_hash.py with the key as tweak: 32 bytes in two blocks, for x and for x with its
highest bit flipped, which no key has set (crypto/identifiers.py).
"""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from securevfl.crypto.key_derivation import derive_key
from securevfl.crypto.share_ring import Words
from securevfl.crypto.transfers import okvs
from securevfl.crypto.transfers.binary_field import Multiplier
from securevfl.crypto.transfers.row_hash import RowHash

_HIGHEST_BIT = np.array([0, 1 << 63], "<u8").astype(np.uint64)

_KEYS_AT_ONCE = 1 << 14


class PrfHash:
    """h and Hash of a session.

    Args:
        coin: 32 public bytes.
    """

    def __init__(self, coin: bytes) -> None:
        self._hash = RowHash(derive_key(coin, "vector OLE PRF", "hash")[:16])
        key = derive_key(coin, "vector OLE PRF", "target")[:16]
        self._target = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305

    def target(self, keys: Words) -> Words:
        """Return h (n, 2) of keys (n, 2)."""
        octets = np.ascontiguousarray(keys).reshape(-1).view(np.uint8).data
        return np.frombuffer(self._target.update(octets), np.uint64).reshape(-1, 2) ^ keys

    def values(self, sums: Words, keys: Words) -> Words:
        """Return Hash (n, 4) of sums (n, 2) and keys (n, 2)."""
        out = np.empty((len(keys), 4), np.uint64)
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            z, x = sums[start : start + _KEYS_AT_ONCE], keys[start : start + _KEYS_AT_ONCE]
            out[start : start + _KEYS_AT_ONCE, :2] = self._hash(z, x)
            out[start : start + _KEYS_AT_ONCE, 2:] = self._hash(z, x ^ _HIGHEST_BIT)
        return out


def evaluate_stored(hashing: PrfHash, seed: bytes, c: Words, keys: Words) -> Words:
    """Evaluate F on stored keys, at the evaluator.

    Args:
        hashing: the hashes of the session.
        seed: the seed of the store.
        c: the evaluator's vector.
        keys: n stored keys (n, 2).

    Returns:
        The values (n, 4).
    """
    return hashing.values(okvs.decode(seed, keys, c)[0], keys)


def evaluate_any(hashing: PrfHash, seed: bytes, b: Words, d: Words, times: Multiplier, keys: Words) -> Words:
    """Evaluate F on any keys, at the holder.

    Args:
        hashing: the hashes of the session.
        seed: the seed of the evaluator's store.
        b: the holder's vector.
        d: the evaluator's message.
        times: multiplication by Delta.
        keys: n keys (n, 2).

    Returns:
        The values (n, 4).
    """
    sums, offsets = okvs.decode(seed, keys, b, d)
    offsets ^= hashing.target(keys)
    sums ^= times(offsets)
    return hashing.values(sums, keys)
