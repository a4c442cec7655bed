"""Short messages with encrypted random vectors: a seed, and a remainder of each entry.

A key holder needs a random matrix psi (n, c) modulo t = 2^L and its ciphertexts. Instead of drawing psi and sending
ciphertexts, it draws a seed, from which both parties compute uniform polynomials c0* and a'. s is the secret key, q the
modulus and e a small error:

    z   = c0* + a' * s + e        uniform modulo q
    psi = round(t * z / q)        uniform modulo t
    rho = z - round(q * psi / t)  the remainder, sent with the seed
    c0  = c0* - rho               (c0, a') is a ciphertext of psi with the error -e

psi and rho determine z and vice versa. If |rho| is at most `limit`, all pairs of psi and rho are equally likely. A seed
with a larger remainder is discarded, so psi is exactly uniform and independent of rho. A peer that sees the seed and
rho therefore sees a fresh ciphertext c0 = c0* - rho of psi and a uniform rho that is independent of it. A remainder has
log2(q / t) bits instead of log2(q). q is the product of P primes.

The party without the key multiplies by its matrix W (ring_layout.py). If a block has several columns of W, unused
coefficients of a polynomial must be 0, which those of c0* are not. Such layouts use ordinary ciphertexts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel.residues import Primes
from securevfl.crypto.kernel.ring_layout import RingLayout
from securevfl.errors import CryptoError

MAX_REMAINDER_BITS = 36
"""Largest number of bits of a remainder; two primes determine it."""

Remainders = NDArray[np.int64]


def remainder_limit(primes: Primes, bits: int) -> int:
    """Return the largest `limit` for which every psi below 2^bits occurs with all remainders |rho| <= limit."""
    return (primes.q - 2**bits) // 2 ** (bits + 1)


def remainder_bits(primes: Primes, bits: int) -> int:
    """Return the number of bits of a remainder."""
    return (2 * remainder_limit(primes, bits)).bit_length()


def is_seedable(primes: Primes, bits: int, layout: RingLayout) -> bool:
    """Return whether vectors of L = `bits` bits can be encrypted from a seed in this layout."""
    return layout.columns == 1 and 32 <= remainder_bits(primes, bits) <= MAX_REMAINDER_BITS


def remainders(primes: Primes, residues: Floats) -> Remainders:
    """Return small integers of any sign, from their residues (P, *shape) modulo the first two primes."""
    p, other = primes.values[:2]
    low = residues[0].astype(np.int64)
    digit = np.mod((residues[1].astype(np.int64) - low) * pow(p, -1, other), other)
    digit -= other * (digit > other // 2)
    return low + p * digit


def remainders_size(primes: Primes, bits: int, count: int) -> int:
    """Return the number of bytes of `count` packed remainders."""
    return 4 * count + (-(-count // 2) if remainder_bits(primes, bits) > 32 else 0)


def pack_remainders(primes: Primes, bits: int, values: Remainders) -> bytes:
    """Return remainders as bytes: the low 32 bits of all, then the next four bits of each, two in a byte."""
    words = (values.reshape(-1) + remainder_limit(primes, bits)).astype(np.uint64)
    low = words.astype("<u4").tobytes()
    if remainder_bits(primes, bits) <= 32:
        return low
    high = np.zeros(2 * -(-len(words) // 2), np.uint8)
    high[: len(words)] = words >> np.uint64(32)
    return low + (high[::2] | high[1::2] << np.uint8(4)).tobytes()


def unpack_remainders(primes: Primes, bits: int, data: bytes | memoryview, count: int) -> Remainders:
    """Read packed remainders; raise CryptoError if one of them is too large."""
    limit = remainder_limit(primes, bits)
    words = np.frombuffer(data, "<u4", count).astype(np.int64)
    if remainder_bits(primes, bits) > 32:
        pairs = np.frombuffer(data, np.uint8, -(-count // 2), offset=4 * count)
        high = np.stack([pairs & 15, pairs >> 4], axis=1).reshape(-1)
        if high[count:].any():
            raise CryptoError("a message contains unused bits that are not 0", code="SVFL-CRYPTO-CIPHERTEXT")
        words += high[:count].astype(np.int64) << 32
    if (words > 2 * limit).any():
        raise CryptoError("a message contains a remainder that is too large", code="SVFL-CRYPTO-CIPHERTEXT")
    return words - limit
