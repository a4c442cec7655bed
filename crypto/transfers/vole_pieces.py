"""The sizes of the pieces that a vector OLE (vole.py) is generated in.

A piece has a number of binary trees. Their leaves are called places; one leaf of each tree carries the noise that makes
the result secret. A linear map compresses the places to outcomes, the entries of the vectors that a piece yields.
"""

from __future__ import annotations

from typing import NamedTuple

from securevfl.crypto.transfers.binary_field import BINARY_FIELD_BITS
from securevfl.crypto.transfers.ot_extension import OtReceiver

MIN_TREES = 848
"""Smallest number of trees of a piece, which is the number of its noisy places."""

CODE_WEIGHT = 21
"""Number of prefix sums of places that are added up for each outcome."""

INVERSE_RATE = 5
"""A piece has at least this number of places per outcome."""

MAX_PIECE_OUTCOMES = 1 << 21
"""Largest number of outcomes of a piece."""

TREES_PER_GROUP = 16
"""Number of trees that are expanded at the same time."""

ELEMENT_BYTES = 16
"""Length of an element of GF(2^128)."""


class VoleSize(NamedTuple):
    """The size of a piece: its numbers of outcomes, trees and levels.

    Attributes:
        outcomes: number of outcomes.
        trees: number of trees.
        depth: number of levels of a tree below its root; a tree has 2^depth leaves.
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
        """Number of oblivious transfers: one for each level of a tree, 128 for each tree, and 128 for the check."""
        return self.trees * self.depth + BINARY_FIELD_BITS * (self.trees + 1)

    @property
    def answer_bytes(self) -> int:
        """Length in bytes of the sender's message with the sums of all trees (step 2 of vole.py)."""
        return self.trees * (2 * self.depth + 1) * ELEMENT_BYTES


def split_outcomes(outcomes: int) -> list[VoleSize]:
    """Divide a vector OLE of this number of outcomes into pieces of about equal size."""
    pieces = -(-outcomes // MAX_PIECE_OUTCOMES)
    counts = [outcomes * (piece + 1) // pieces - outcomes * piece // pieces for piece in range(pieces)]
    return [_size(count) for count in counts]


def _size(outcomes: int) -> VoleSize:
    places = INVERSE_RATE * outcomes
    depth = max(1, (-(-places // MIN_TREES) - 1).bit_length())
    if depth > 1 and 4 * (MIN_TREES << depth) > 5 * places:  # with fewer levels and more trees, fewer places are unused
        depth -= 1
    trees = max(MIN_TREES, -(-places >> depth) if places % (1 << depth) == 0 else (places >> depth) + 1)
    return VoleSize(outcomes, -(-trees // TREES_PER_GROUP) * TREES_PER_GROUP, depth)


def choice_bytes(size: VoleSize) -> int:
    """Return the number of random bytes that the receiver needs to request a piece."""
    return OtReceiver.choice_bytes(size.rows)
