"""Arithmetic in the finite field GF(2^128), for many elements at a time.

An element is a polynomial in x with 128 coefficients of 0 or 1, modulo x^128 + x^7 + x^2 + x + 1. Addition is XOR. An
element has 16 bytes, which are stored as two words of 64 bits, in arrays (.., 2): the coefficient of x^i is bit 7 - i %
8 of byte i // 8. This is the representation of GHASH (NIST SP 800-38D, section 6.3), the hash of AES-GCM. A fast
library for AES-GCM can therefore compute hashes of many elements. A product with a fixed element is the XOR of 16 table
entries, one for each byte of the other element.
"""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from securevfl.crypto.secret import Secret
from securevfl.crypto.share_ring import Words

BINARY_FIELD_BITS = 128
"""Number of bits of an element."""
_OCTETS = BINARY_FIELD_BITS // 8
_REDUCTION = np.uint64(0xE1 << 56)
_ONE = np.uint64(1)
_ELEMENTS_AT_ONCE = 1 << 14


def take_rows(table: Words, at: NDArray[np.integer]) -> Words:
    """Return the rows (k, 2) of a table (n, 2) at k valid indices. Moving both words of a row at once is faster."""
    return np.take(table.view(np.complex128)[:, 0], at, mode="clip").view(np.uint64).reshape(-1, 2)


class Multiplier(Secret):
    """A function that multiplies elements by one fixed element, which may be secret.

    Args:
        element: the 16 bytes of the fixed element.
    """

    __slots__ = ("_tables",)

    def __init__(self, element: bytes) -> None:
        power = np.frombuffer(element, np.uint64)[None].copy()
        basis = np.empty((BINARY_FIELD_BITS, 2), np.uint64)
        for power_of_x in range(BINARY_FIELD_BITS):
            basis[power_of_x] = power[0]
            power = _times_x(power)
        self._tables = np.zeros((_OCTETS, 256, 2), np.uint64)
        for octet, table in enumerate(self._tables):
            for bit in range(8):
                table[1 << bit : 2 << bit] = table[: 1 << bit] ^ basis[8 * octet + 7 - bit]

    def __call__(self, elements: Words) -> Words:
        """Return the product of each of n elements (n, 2) with the fixed element."""
        out = np.zeros(elements.shape, np.uint64)
        octets = np.ascontiguousarray(elements).view(np.uint8)
        for start in range(0, len(out), _ELEMENTS_AT_ONCE):
            products, data = out[start : start + _ELEMENTS_AT_ONCE], octets[start : start + _ELEMENTS_AT_ONCE]
            for octet, table in enumerate(self._tables):
                products ^= take_rows(table, data[:, octet])
        return out


def combine_powers(elements: Words) -> Words:
    """Return, for each of n rows of 128 elements (n, 128, 2), the sum of element number k times x^k (n, 2)."""
    total = np.zeros((len(elements), 2), np.uint64)
    for power in reversed(range(BINARY_FIELD_BITS)):
        total = _times_x(total)
        total ^= elements[:, power]
    return total


def ghash(challenge: bytes, elements: Words) -> Words:
    """Return the GHASH of n elements: the sum of element number i times H^(n + 1 - i), which is linear in the elements.

    It is computed as the AES-GCM tag of the elements as associated data, minus the tag of zeros.

    Args:
        challenge: 32 bytes that determine the element H.
        elements: the elements (n, 2).

    Returns:
        The hash (2,), an element.
    """
    octets = np.ascontiguousarray(elements).reshape(-1).view(np.uint8).data
    key, nonce = challenge[:16], challenge[16:28]
    tag = AESGCM(key).encrypt(nonce, b"", octets)
    permutation = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305
    blocks = np.frombuffer(permutation.update(bytes(16) + nonce + b"\0\0\0\1"), np.uint64).reshape(2, 2)
    length_block = (8 * len(octets)).to_bytes(8, "big") + bytes(8)
    of_zeros = Multiplier(blocks[0].tobytes())(np.frombuffer(length_block, np.uint64)[None])[0] ^ blocks[1]
    return np.frombuffer(tag, np.uint64) ^ of_zeros


def _times_x(elements: Words) -> Words:
    high, low = np.ascontiguousarray(elements).view(">u8").astype(np.uint64).T
    out = np.empty((len(elements), 2), np.uint64)
    out[:, 0] = high >> _ONE ^ (low & _ONE) * _REDUCTION
    out[:, 1] = low >> _ONE ^ high << np.uint64(63)
    return out.astype(">u8").view(np.uint64)
