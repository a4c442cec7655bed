"""Transposition of bit matrices that are stored by columns.

A square of 64 x 64 bits is transposed by six swaps of ever smaller blocks (Warren, Hacker's Delight, section 7-3), each
for all squares at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.share_ring import Words

_SIDE = 64

_WORDS_AT_ONCE = 1 << 16  # words that are swapped at a time

_SWAPS = tuple(  # the distance of a swap, and the bits of a word that move
    (shift, np.uint64(sum((2**shift - 1) << start for start in range(0, _SIDE, 2 * shift))))
    for shift in (32, 16, 8, 4, 2, 1)
)


def transpose_bits(columns: NDArray[np.uint8]) -> Words:
    """Transpose a bit matrix; the lowest bit is the first one everywhere.

    Args:
        columns: the columns (64 m, k) as bytes.

    Returns:
        The rows (8 k, m) as words: row r has bit r of every column.
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
