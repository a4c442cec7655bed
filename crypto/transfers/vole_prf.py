"""An oblivious pseudorandom function F from vector OLE, for private set intersection.

The holder can evaluate F on any key x, a block of 16 bytes. The evaluator can evaluate F only on the keys that it has
encoded in a key-value store before, and the holder does not learn these keys. All additions (XOR) and multiplications
are in the field GF(2^128), and h is a public hash of keys to the field. A key-value store with the table V (okvs.py)
returns a value V(x) for every x, which is the sum of a few rows of V that x selects. A vector OLE (vole.py) with one
entry per row gives the vectors a and c to the evaluator, and b and a number Delta to the holder, with c = b + a *
Delta.

    evaluator   encodes its keys in a store P with P(x) = h(x); sends the store's seed and d = P + a
    evaluator   F(x) = Hash(c(x), x) for an encoded key
    holder      F(x) = Hash(b(x) + (d(x) + h(x)) * Delta, x) for any key

d looks uniform to the holder because a does. The holder's value equals b(x) + d(x) * Delta + h(x) * Delta = c(x) +
(P(x) + h(x)) * Delta. For an encoded key this is c(x). For any other key it contains a multiple of Delta, which the
evaluator does not know, so F(x) is noise to the evaluator, whatever d it has sent. The number of rows bounds the number
of keys that it can encode (docs/proof.md).

h(x) is pi(x) + x with a public permutation pi (AES). Hash(z, x) is the hash of row_hash.py with x as tweak. It has 32
bytes, from two calls: for x, and for x with its highest bit flipped; that bit is 0 in every key
(crypto/identifiers.py).

The method is that of Rindal, Schoppmann 2021 ("VOLE-PSI") and Raghuraman, Rindal 2022 ("Blazing fast PSI from improved
OKVS and subfield VOLE").
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
    """The functions h and Hash of one session, with public keys that both parties derive from its coin.

    Args:
        coin: 32 public bytes that both parties have.
    """

    def __init__(self, coin: bytes) -> None:
        self._hash = RowHash(derive_key(coin, "vector OLE PRF", "hash")[:16])
        key = derive_key(coin, "vector OLE PRF", "target")[:16]
        self._target = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305

    def target(self, keys: Words) -> Words:
        """Return h(x) for n keys (n, 2), as elements (n, 2)."""
        octets = np.ascontiguousarray(keys).reshape(-1).view(np.uint8).data
        return np.frombuffer(self._target.update(octets), np.uint64).reshape(-1, 2) ^ keys

    def values(self, sums: Words, keys: Words) -> Words:
        """Return Hash(z, x) as words (n, 4), for elements z (n, 2), given as `sums`, and keys x (n, 2)."""
        out = np.empty((len(keys), 4), np.uint64)
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            z, x = sums[start : start + _KEYS_AT_ONCE], keys[start : start + _KEYS_AT_ONCE]
            out[start : start + _KEYS_AT_ONCE, :2] = self._hash(z, x)
            out[start : start + _KEYS_AT_ONCE, 2:] = self._hash(z, x ^ _HIGHEST_BIT)
        return out


def evaluate_stored(hashing: PrfHash, seed: bytes, c: Words, keys: Words) -> Words:
    """Evaluate F at the evaluator, on keys that it has encoded.

    Args:
        hashing: the hashes of the session.
        seed: the seed of the key-value store.
        c: the vector c of the vector OLE (rows, 2).
        keys: n encoded keys (n, 2).

    Returns:
        The values of F as words (n, 4).
    """
    return hashing.values(okvs.decode(seed, keys, c)[0], keys)


def evaluate_any(hashing: PrfHash, seed: bytes, b: Words, d: Words, times: Multiplier, keys: Words) -> Words:
    """Evaluate F at the holder, on any keys.

    Args:
        hashing: the hashes of the session.
        seed: the seed of the evaluator's key-value store.
        b: the vector b of the vector OLE (rows, 2).
        d: the evaluator's masked store d (rows, 2).
        times: multiplies elements by Delta.
        keys: n keys (n, 2).

    Returns:
        The values of F as words (n, 4).
    """
    sums, offsets = okvs.decode(seed, keys, b, d)
    offsets ^= hashing.target(keys)
    sums ^= times(offsets)
    return hashing.values(sums, keys)
