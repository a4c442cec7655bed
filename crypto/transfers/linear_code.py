"""The binary linear code of the oblivious transfer extension: 76 bits to 512, any two words 172 bits apart.

The BCH code [511, 76, 171] over GF(2) with a parity bit, as Orru, Orsini, Scholl 2017 ("Actively secure 1-out-of-N OT
extension with application to private set intersection") use it. Its generator polynomial g is the product of the
minimal polynomials of alpha, alpha^2, .. alpha^170, alpha a root of x^9 + x^4 + 1, so the BCH bound gives a distance of
171; the parity bit makes every weight even.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["CODE_BITS", "DISTANCE", "MESSAGE_BITS", "encode"]

CODE_BITS = 512
MESSAGE_BITS = 76
DISTANCE = 172
_FIELD = 0b1000010001  # x^9 + x^4 + 1, primitive over GF(2)
_DEGREE = 9

Words = NDArray[np.uint64]


def encode(messages: Words) -> Words:
    """Code words (n, 8) of messages (n, 2): 76 bits each, bit i of a message in word i // 64."""
    tables = _tables()
    total = np.zeros((len(messages), CODE_BITS // 64), np.uint64)
    octets = np.ascontiguousarray(messages, "<u8").view(np.uint8)
    for position, table in enumerate(tables):
        total ^= table[octets[:, position]]
    return total


@lru_cache(maxsize=1)
def _tables() -> Words:
    """Tabulate, for each of the ten octets of a message, the words of its 256 values: (10, 256, 8)."""
    octets = -(-MESSAGE_BITS // 8)
    rows = [_words(_generator() << bit) for bit in range(MESSAGE_BITS)]
    rows += [np.zeros(CODE_BITS // 64, np.uint64)] * (8 * octets - MESSAGE_BITS)
    tables = np.zeros((octets, 256, CODE_BITS // 64), np.uint64)
    for position in range(octets):
        for bit in range(8):
            tables[position, 1 << bit : 2 << bit] = tables[position, : 1 << bit] ^ rows[8 * position + bit]
    return tables


def _words(word: int) -> Words:
    """Append the parity to a word of 511 bits, and return it as eight uint64."""
    whole = word | (word.bit_count() & 1) << (CODE_BITS - 1)
    return np.frombuffer(whole.to_bytes(CODE_BITS // 8, "little"), "<u8").astype(np.uint64)


@lru_cache(maxsize=1)
def _generator() -> int:
    """g, bit i the coefficient of x^i: degree 511 - 76."""
    powers = _powers()
    product, done = 1, set[int]()
    for root in range(1, DISTANCE - 1):
        if root in done:
            continue
        conjugates = {root * 2**k % 511 for k in range(_DEGREE)}
        done |= conjugates
        minimal = [1]  # coefficients in GF(512), lowest first; they come out as 0 and 1
        for each in conjugates:
            shifted = [0, *minimal]
            scaled = [_times(coefficient, powers[each]) for coefficient in minimal] + [0]
            minimal = [a ^ b for a, b in zip(shifted, scaled, strict=True)]
        product = _carryless(product, sum(bit << place for place, bit in enumerate(minimal)))
    return product


def _powers() -> list[int]:
    """alpha^0 .. alpha^510 as polynomials in alpha, one bit a coefficient."""
    powers = [1]
    while len(powers) < 511:
        power = powers[-1] << 1
        powers.append(power ^ _FIELD if power >> _DEGREE else power)
    return powers


def _times(a: int, b: int) -> int:
    product = _carryless(a, b)
    while (excess := product.bit_length() - 1 - _DEGREE) >= 0:
        product ^= _FIELD << excess
    return product


def _carryless(a: int, b: int) -> int:
    product = 0
    while b:
        if b & 1:
            product ^= a
        a, b = a << 1, b >> 1
    return product
