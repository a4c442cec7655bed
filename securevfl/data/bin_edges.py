"""Edges of the bins of a numeric column, computed from its training rows.

A *bin* is an interval of values; its *edge* is its lower end. Most edges are quantiles, so that bins have about equally
many rows. These values get a bin of their own: all values of a column with few distinct values; a value that at least
half a bin's rows have, such as 0; and *codes*, numbers far from all others at either end, such as 96 and 98 among
counts up to 13. Every bin has at least MIN_BIN_ROWS rows. Edges have as few digits as possible (`shortest_between`).

The model gets one 0/1 column for each edge, which is 1 if x >= edge. Its weight is thus the difference between two
neighbouring bins. These columns are not standardised but divided by the constant BIN_SCALE, because standardising
would weaken the regularisation of rare bins.
"""

from __future__ import annotations

from decimal import ROUND_FLOOR, Context, Decimal

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats

BIN_SCALE = 4.0
"""The number by which the 0/1 columns are divided, in place of their standard deviations."""
MIN_BIN_ROWS = 20
"""Minimum number of training rows of a bin."""
FREE_DIGITS = 4
"""An edge with this many digits, or fewer, is not rounded to fewer digits."""
MAX_CODES_AT_AN_END = 3
"""Maximum number of codes at either end of a column."""
MIN_CODE_DISTANCE = 2
"""Minimum distance of a code from the nearest other value, relative to that value's distance from the median."""


def find_bin_edges(present: Floats, bins: int) -> list[float]:
    """Return the lower edges of all bins except the first one, which has none.

    Args:
        present: the values (n,) of the training rows, without missing values.
        bins: the number of bins to aim at.

    Returns:
        The edges in increasing order; none if there are no values.
    """
    if not len(present):
        return []
    values, counts = np.unique(present, return_counts=True)
    rows_per_bin = len(present) / bins
    codes = _codes(values, counts)
    single = (counts >= rows_per_bin / 2) | codes | (len(values) <= bins)
    rows_below = np.append(0, np.cumsum(counts))
    ends, start = [], 0
    singles = [*np.flatnonzero(single).tolist(), len(values)]
    while start < len(values):
        if single[start]:
            end = start + 1
        else:
            full = int(np.searchsorted(rows_below, rows_below[start] + rows_per_bin))
            end = max(start + 1, min(full, singles[int(np.searchsorted(singles, start))]))
        ends.append(end)
        start = end
    edges, first_row = list[float](), 0
    for end in ends[:-1]:
        if rows_below[end] - first_row < MIN_BIN_ROWS and edges and codes[end]:
            edges.pop()  # there would be too few rows between this edge and the code, so they join the previous bin
        elif rows_below[end] - first_row < MIN_BIN_ROWS or len(present) - rows_below[end] < MIN_BIN_ROWS:
            continue
        edges.append(shortest_between(values[end - 1], values[end]))
        first_row = rows_below[end]
    return edges


def shortest_between(below: float, value: float) -> float:
    """Return the number with the fewest decimal digits, at least four, that is above `below` and at most `value`."""
    exact = Decimal(repr(float(value)))
    for digits in range(FREE_DIGITS, 18):
        edge = float(exact.normalize(Context(prec=digits, rounding=ROUND_FLOOR)))
        if edge > below:
            return edge
    return float(value)


def format_number(number: float) -> str:
    """Return the shortest decimal text that Python parses to exactly this float."""
    return repr(float(number)).removesuffix(".0")


def _codes(values: Floats, counts: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Return which of the sorted distinct values (k,) are codes, that is, far from the others and frequent enough."""
    is_code = np.zeros(len(values), bool)
    median = float(values[np.searchsorted(np.cumsum(counts), counts.sum() / 2)])
    upwards = values, counts, median, is_code
    downwards = -values[::-1], counts[::-1], -median, is_code[::-1]
    for ordered, rows, middle, marks in (upwards, downwards):
        for k in range(min(MAX_CODES_AT_AN_END, len(ordered) - 2), 0, -1):
            neighbour, code = ordered[-k - 1], ordered[-k]
            is_far = neighbour > middle and code - neighbour > MIN_CODE_DISTANCE * (neighbour - middle)
            if is_far and (rows[-k:] >= MIN_BIN_ROWS).all():
                marks[-k:] = True
                break
    return is_code
