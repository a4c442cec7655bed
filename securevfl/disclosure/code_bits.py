"""How much reason codes tell of a row: which k of a party's n columns cost it most, in order, under names of its own.

Codes in order are one of n! / (n - k)! cases, so they tell log2 of that in bits at most.
"""

from __future__ import annotations

import math

__all__ = ["code_bits"]


def code_bits(columns: int, most: int) -> float:
    """Return how much `most` codes of a row tell of it at most, of a party with so many columns: log2 of
    n! / (n - k)!."""
    return sum(math.log2(columns - each) for each in range(min(most, columns)))
