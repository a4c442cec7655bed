"""Transposition of matrices of bits, which are stored by columns and needed by rows in oblivious transfers.

A matrix is divided into squares of 64 x 64 bits. Each square is transposed by swapping blocks of 32 bits, then blocks
of 16, 8, 4, 2 and 1 bits (Warren, Hacker's Delight, section 7-3), for all squares at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.share_ring import Words

_SIDE = 64

_WORDS_AT_ONCE = 1 << 16  # words of 64 bits that are processed at a time, so that they fit into the cache

_SWAPS = tuple(  # the size of the swapped blocks, and a mask of the bits of a word that move
    (shift, np.uint64(sum((2**shift - 1) << start for start in range(0, _SIDE, 2 * shift))))
    for shift in (32, 16, 8, 4, 2, 1)
)


def transpose_bits(columns: NDArray[np.uint8]) -> Words:
    """Transpose a matrix of bits. The lowest bit of a byte or word is its first one.

    Args:
        columns: the columns (64 * m, k), each as k bytes.

    Returns:
        The rows (8 * k, m), each as m words of 64 bits: row r contains bit r of every column.
    """
    count, octets = columns.shape
    if octets % 8:
        return transpose_bits(np.pad(columns, ((0, 0), (0, 8 - octets % 8))))[: 8 * octets]
    words = np.ascontiguousarray(columns).view("<u8").reshape(-1, _SIDE, octets // 8)
    rows = np.empty((octets // 8, _SIDE, count // _SIDE), np.uint64)
    step = max(1, _WORDS_AT_ONCE // count)
    for start in range(0, octets // 8, step):
        tile = words[:, :, start : start + step].astype(np.uint64)
        for shift, low in _SWAPS:
            blocks = tile.reshape(len(tile), -1, 2, shift, tile.shape[2])
            above, below = blocks[:, :, 0], blocks[:, :, 1]
            swap = above >> np.uint64(shift)
            swap ^= below
            swap &= low
            below ^= swap
            swap <<= np.uint64(shift)
            above ^= swap
        rows[start : start + step] = tile.transpose(2, 1, 0)
    return rows.reshape(8 * octets, -1)
