"""Where a column of numbers is parted, by its training rows alone: what weights of evidence get from labels, without.

Quantiles part it into about as many bins as are asked for. Values that mean something by themselves have bins of their
own: each of few different ones, one that holds half a bin's rows or more (such as 0), and codes that stand far apart
from all others at either end, such as 96 and 98 among counts up to 13. No bin has fewer than FEWEST rows. An edge is a
round number (`rounded`), so that what is printed of it is the edge itself.

The columns that come of it say x >= edge, one for each edge, and not in which bin x lies: so a weight is the step from
one bin to the next, and what holds weights back makes the sum over a column smooth. None is scaled by its own
deviation, which would spare the rarest; all have the same, DEVIATION. On shares a model then ranks as
well as one of weights of evidence or better, with as many bins (docs/modelling.md).
"""

from __future__ import annotations

from decimal import ROUND_FLOOR, Context, Decimal

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats

DEVIATION = 4.0  # what a step of 0/1 is divided by
FEWEST = 20  # training rows of a bin
SHORT = 4  # digits of an edge that nobody minds
CODES = 3  # different values at either end that may be codes
APART = 2  # how many times as far from its neighbour as that from the median a code lies


def edges_of(present: Floats, bins: int) -> list[float]:
    """Return the rising values (k,) at which bins after the first begin, of the values (n,) that rows have."""
    values, counts = np.unique(present, return_counts=True)
    share = len(present) / bins
    codes = _codes(values, counts)
    alone = (counts >= share / 2) | codes | (len(values) <= bins)
    below = np.append(0, np.cumsum(counts))
    ends, start = [], 0
    singles = [*np.flatnonzero(alone).tolist(), len(values)]
    while start < len(values):
        if alone[start]:
            end = start + 1
        else:
            full = int(np.searchsorted(below, below[start] + share))
            end = max(start + 1, min(full, singles[int(np.searchsorted(singles, start))]))
        ends.append(end)
        start = end
    edges, begun = list[float](), 0
    for end in ends[:-1]:
        if below[end] - begun < FEWEST and edges and codes[end]:
            edges.pop()  # a few rows before a code go with those before them
        elif below[end] - begun < FEWEST or len(present) - below[end] < FEWEST:
            continue
        edges.append(rounded(values[end - 1], values[end]))
        begun = below[end]
    return edges


def rounded(below: float, value: float) -> float:
    """Return the number of fewest digits that parts `value` and all above it from what is at most `below`; the value
    itself if it has few."""
    exact = Decimal(repr(float(value)))
    for digits in range(SHORT, 18):
        edge = float(exact.normalize(Context(prec=digits, rounding=ROUND_FLOOR)))
        if edge > below:
            return edge
    return float(value)


def decimal(number: float) -> str:
    """Return a number in the fewest digits that are read back as it."""
    return repr(float(number)).removesuffix(".0")


def _codes(values: Floats, counts: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Which of the rising values (k,) stand far apart at either end, each in enough rows."""
    found = np.zeros(len(values), bool)
    median = float(values[np.searchsorted(np.cumsum(counts), counts.sum() / 2)])
    for own, rows, middle, at in ((values, counts, median, found), (-values[::-1], counts[::-1], -median, found[::-1])):
        for k in range(min(CODES, len(own) - 2), 0, -1):
            last, first = own[-k - 1], own[-k]
            if last > middle and first - last > APART * (last - middle) and (rows[-k:] >= FEWEST).all():
                at[-k:] = True
                break
    return found
