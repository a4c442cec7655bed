"""Tests of randomness of successive draws, bit by bit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from securevfl.audit.statistics import MIN_SAMPLES, Battery


def bitwise(battery: Battery, name: str, bits: NDArray[np.uint8]) -> None:
    """Test successive draws (n x b bits, each uniform): each bit, each pair of bits, and pairs of adjacent draws.

    They give three p-values: the smallest of all exact binomial tests of one kind, times their number.
    """
    if len(bits) < MIN_SAMPLES:
        return
    n, b = bits.shape
    rows, later = _packed(bits[: n - 1]), _packed(bits[1:])
    packed = _packed(bits)
    ones = np.abs(n - 2 * np.bitwise_count(packed).sum(axis=1, dtype=np.int64)).max()
    within = max((_unlike(packed[i + 1 :], packed[i], n) for i in range(b - 1)), default=0)
    in_turn = max(_unlike(later, row, n - 1) for row in rows)
    battery.add(f"{name}: balance of bits", _least(int(ones), n, b))
    battery.add(f"{name}: bits of one draw", _least(within, n, b * (b - 1) // 2))
    battery.add(f"{name}: bits of draws in turn", _least(in_turn, n - 1, b * b))


def _packed(bits: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return each column of (n x b) bits as words (b x n / 64), padded with zeros."""
    octets = np.packbits(bits.T, axis=1)
    filled = np.zeros((len(octets), -(-octets.shape[1] // 8) * 8), np.uint8)
    filled[:, : octets.shape[1]] = octets
    return filled.view(np.uint64)


def _unlike(columns: NDArray[np.uint64], other: NDArray[np.uint64], n: int) -> int:
    """Return the largest |equal bits - different bits| of the columns compared with another one, for n bits."""
    unlike = np.bitwise_count(columns ^ other).sum(axis=1, dtype=np.int64)
    return int(np.abs(n - 2 * unlike).max(initial=0))


def _least(largest: int, n: int, tests: int) -> float:
    """Return the two-sided p-value of the largest of `tests` sums of n random signs, times their number."""
    return min(1.0, max(1, tests) * 2.0 * float(stats.binom.sf((n + largest) / 2 - 1, n, 0.5)))


def bits_of(words: NDArray[np.unsignedinteger]) -> NDArray[np.uint8]:
    """Return the bits (n x b) of unsigned words (any shape, n in all), lowest first."""
    octets = np.ascontiguousarray(words.ravel().astype(words.dtype.newbyteorder("<")))
    return np.unpackbits(octets.view(np.uint8).reshape(octets.size, -1), axis=1, bitorder="little")


def bits_of_numbers(numbers: Sequence[int], width: int) -> NDArray[np.uint8]:
    """Return the lowest `width` bits (n x width) of each number, lowest first."""
    size = -(-width // 8)
    raw = b"".join((number & (1 << width) - 1).to_bytes(size, "little") for number in numbers)
    rows = np.frombuffer(raw, np.uint8).reshape(len(numbers), size)
    return np.unpackbits(rows, axis=1, count=width, bitorder="little")
