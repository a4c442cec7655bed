"""The sizes of vector OLE pieces."""

from __future__ import annotations

from typing import NamedTuple

from securevfl.crypto.transfers.binary_field import FIELD_BITS
from securevfl.crypto.transfers.ot_extension import OtReceiver

MIN_TREES = 848  # blocks of noise: the least number

CODE_WEIGHT = 21  # sums that each outcome adds up

INVERSE_RATE = 5

MAX_PIECE_OUTCOMES = 1 << 21  # outcomes of one piece

GROUP = 16  # trees that grow side by side

WORD = 16  # octets of an element


class VoleSize(NamedTuple):
    """One piece of a vector OLE: its outcomes, its trees, and how deep these are."""

    outcomes: int
    trees: int
    depth: int

    @property
    def places(self) -> int:
        return self.trees << self.depth

    @property
    def rows(self) -> int:
        """Transfers that the piece takes: a row for each level of a tree, 128 for each product."""
        return self.trees * self.depth + FIELD_BITS * (self.trees + 1)

    @property
    def answer_bytes(self) -> int:
        return self.trees * (2 * self.depth + 1) * WORD


def split_outcomes(outcomes: int) -> list[VoleSize]:
    """Cut a vector OLE into pieces of about as many outcomes each."""
    pieces = -(-outcomes // MAX_PIECE_OUTCOMES)
    counts = [outcomes * (each + 1) // pieces - outcomes * each // pieces for each in range(pieces)]
    return [_size(count) for count in counts]


def _size(outcomes: int) -> VoleSize:
    places = INVERSE_RATE * outcomes
    depth = max(1, (-(-places // MIN_TREES) - 1).bit_length())
    if depth > 1 and 4 * (MIN_TREES << depth) > 5 * places:  # rather more trees than places that nobody needs
        depth -= 1
    trees = max(MIN_TREES, -(-places >> depth) if places % (1 << depth) == 0 else (places >> depth) + 1)
    return VoleSize(outcomes, -(-trees // GROUP) * GROUP, depth)


def choice_bytes(size: VoleSize) -> int:
    """Return how many random octets a taker needs for a piece."""
    return OtReceiver.choice_bytes(size.rows)
