"""The sizes of the pieces of a vector OLE."""

from __future__ import annotations

from typing import NamedTuple

from securevfl.crypto.transfers.binary_field import FIELD_BITS
from securevfl.crypto.transfers.ot_extension import OtReceiver

MIN_TREES = 848
"""Smallest number of trees, which are the blocks of noise."""

CODE_WEIGHT = 21
"""Number of partial sums that are added for each outcome."""

INVERSE_RATE = 5
"""Smallest ratio of places to outcomes."""

MAX_PIECE_OUTCOMES = 1 << 21
"""Largest number of outcomes of a piece."""

TREES_PER_GROUP = 16
"""Number of trees that are expanded together."""

ELEMENT_BYTES = 16
"""Length of an element."""


class VoleSize(NamedTuple):
    """The size of a piece.

    Attributes:
        outcomes: number of outcomes.
        trees: number of trees.
        depth: depth of the trees.
    """

    outcomes: int
    trees: int
    depth: int

    @property
    def places(self) -> int:
        """Number of leaves of all trees."""
        return self.trees << self.depth

    @property
    def rows(self) -> int:
        """Number of transfers of the piece: one row for each level of a tree, and 128 for each product."""
        return self.trees * self.depth + FIELD_BITS * (self.trees + 1)

    @property
    def answer_bytes(self) -> int:
        """Length of the sender's answer."""
        return self.trees * (2 * self.depth + 1) * ELEMENT_BYTES


def split_outcomes(outcomes: int) -> list[VoleSize]:
    """Divide a vector OLE into pieces of about equal numbers of outcomes."""
    pieces = -(-outcomes // MAX_PIECE_OUTCOMES)
    counts = [outcomes * (piece + 1) // pieces - outcomes * piece // pieces for piece in range(pieces)]
    return [_size(count) for count in counts]


def _size(outcomes: int) -> VoleSize:
    places = INVERSE_RATE * outcomes
    depth = max(1, (-(-places // MIN_TREES) - 1).bit_length())
    if depth > 1 and 4 * (MIN_TREES << depth) > 5 * places:  # more trees are better than unused places
        depth -= 1
    trees = max(MIN_TREES, -(-places >> depth) if places % (1 << depth) == 0 else (places >> depth) + 1)
    return VoleSize(outcomes, -(-trees // TREES_PER_GROUP) * TREES_PER_GROUP, depth)


def choice_bytes(size: VoleSize) -> int:
    """Return how many random bytes a receiver needs for a piece."""
    return OtReceiver.choice_bytes(size.rows)
