"""A fast first search for thousands of byte strings in a frame, which rules out most frames.

A search for each string by itself would read the frame thousands of times.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

_START = 8
_TABLE = 1 << 20
_LOW = np.uint64(_TABLE - 1)


class PieceSearch:
    """Decides whether a frame may contain one of several byte strings, by their first 8 bytes.

    Args:
        pieces: the byte strings; each one with fewer than 8 bytes is searched for by itself.
    """

    def __init__(self, pieces: Iterable[bytes]) -> None:
        distinct = set(pieces)
        self._short = [piece for piece in distinct if len(piece) < _START]
        starts = {int.from_bytes(piece[:_START], "little") for piece in distinct if len(piece) >= _START}
        self._starts = np.array(sorted(starts), dtype=np.uint64)
        self._table = np.zeros(_TABLE, dtype=np.bool_)  # whether a string starts with these 20 bits
        self._table[self._starts & _LOW] = True

    def may_contain(self, frame: bytes) -> bool:
        """Return False only if the frame contains none of the byte strings."""
        if any(piece in frame for piece in self._short):
            return True
        for offset in range(min(_START, len(frame) - _START + 1)):
            words = np.frombuffer(frame, "<u8", (len(frame) - offset) // _START, offset)
            words = words[self._table[words & _LOW]]
            if len(words) and (self._starts.take(np.searchsorted(self._starts, words), mode="clip") == words).any():
                return True
        return False
