"""Where columns lie and how far they spread, from as many rows as there are but few of them in memory at a time."""

from __future__ import annotations

import numpy as np

from securevfl.crypto.scheme import Floats
from securevfl.data.schedule import Rows

CHUNK = 1 << 21  # numbers at a time
DRAWN = 1 << 16  # rows that quartiles are taken of
QUARTILES = 1.3489795003921634  # between the quartiles of a normal distribution of deviation 1


def moments(X: Floats, rows: Rows) -> tuple[Floats, Floats]:
    """Mean and standard deviation (d,) each of X[rows], as numpy's but for rounding; exactly 0 for a constant column.

    One pass over chunks of rows in the order given, put together by the pairwise update of Chan, Golub and LeVeque
    (1983). X is an array or a table on disk.
    """
    step = max(1, CHUNK // X.shape[1])
    origin = X[rows[:1]]
    mean, squares = np.zeros(X.shape[1]), np.zeros(X.shape[1])
    for start in range(0, len(rows), step):
        chunk = X[rows[start : start + step]] - origin
        own = chunk.mean(axis=0)
        apart, total = own - mean, start + len(chunk)
        squares += ((chunk - own) ** 2).sum(axis=0) + apart**2 * (start * len(chunk) / total)
        mean += apart * (len(chunk) / total)
    return origin[0] + mean, np.sqrt(squares / len(rows))


def quartiles(X: Floats, rows: Rows) -> tuple[Floats, Floats]:
    """Median and spread (d,) each of the first DRAWN of X[rows], which come in a random order.

    The spread is the distance of the quartiles, of a normal distribution its deviation. A column whose quartiles are
    equal has its deviation instead, as one of 0/1 where fewer than a quarter are 1.
    """
    drawn = X[rows[:DRAWN]]
    low, median, high = np.quantile(drawn, [0.25, 0.5, 0.75], axis=0)
    spread = (high - low) / QUARTILES
    return median, np.where(spread > 0, spread, drawn.std(axis=0))
