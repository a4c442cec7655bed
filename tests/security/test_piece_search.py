"""The first search of the transcript checks rules out no frame that contains a secret."""

from __future__ import annotations

import numpy as np
import pytest

from securevfl.audit.piece_search import PieceSearch


@pytest.mark.parametrize("size", [3, 7, 8, 9, 12, 24])
def test_a_piece_is_found_at_every_place(size: int) -> None:
    draw = np.random.default_rng(size)
    pieces = [draw.bytes(size) for _ in range(50)]
    search = PieceSearch([*pieces, draw.bytes(30)])
    for length in (size, size + 1, 40):
        for place in range(length - size + 1):
            frame = bytearray(draw.bytes(length))
            assert size < 8 or not search.may_contain(bytes(frame))
            frame[place : place + size] = pieces[place % len(pieces)]
            assert search.may_contain(bytes(frame)), (length, place)


def test_short_frames_and_no_pieces() -> None:
    assert not PieceSearch([]).may_contain(bytes(100))
    for length in range(9):
        assert PieceSearch([bytes(8), b"abc"]).may_contain(bytes(length)) == (length == 8)
