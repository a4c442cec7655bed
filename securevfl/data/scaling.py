"""Where columns lie and how far they spread, from as many rows as there are but few of them in memory at a time."""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.tall import Stretch, Tall
from securevfl.data.outside_tables import Outside, ScaledOutsideRows
from securevfl.data.schedule import Rows

DRAWN = 1 << 16  # rows that quartiles are taken of
QUARTILES = 1.3489795003921634  # between the quartiles of a normal distribution of deviation 1


def moments(X: Floats | Outside, rows: Rows) -> tuple[Floats, Floats]:
    """Mean and standard deviation (d,) each of X[rows], as numpy's but for rounding; exactly 0 for a constant column.

    One pass over blocks of rows in the order given, put together by the pairwise update of Chan, Golub and LeVeque
    (1983). X is an array, or a table outside of memory; rows that lie at workers are passed over there.
    """
    zero, one = np.zeros(X.shape[1]), np.ones(X.shape[1])
    tall = X.tall(rows, zero, one) if isinstance(X, Outside) else None
    matrix = Tall.here(ScaledOutsideRows(X, rows, zero, one)) if tall is None else tall
    coming = [part.run(moments_of) for part in matrix.parts]
    count, mean, squares = reduce(together, [each.result() for each in coming])
    return mean, np.sqrt(squares / count)


class Moments(NamedTuple):
    """The moments of some rows: how many there are, their mean (d,), and the sum of squared differences from it
    (d,)."""

    rows: int
    mean: Floats
    squares: Floats


def moments_of(stretch: Stretch) -> Moments:
    """Return the moments of the rows of a stretch, reading few of them into memory at a time."""
    origin = stretch.rows[:1]
    found = Moments(0, np.zeros(origin.shape[1]), np.zeros(origin.shape[1]))
    for _, X in stretch.blocks():
        chunk = X - origin
        own = chunk.mean(axis=0)
        found = together(found, Moments(len(chunk), own, ((chunk - own) ** 2).sum(axis=0)))
    return found._replace(mean=origin[0] + found.mean)


def together(one: Moments, other: Moments) -> Moments:
    """Combine the moments of two sets of rows into those of all the rows together."""
    apart, total = other.mean - one.mean, one.rows + other.rows
    squares = one.squares + (other.squares + apart**2 * (one.rows * other.rows / total))
    return Moments(total, one.mean + apart * (other.rows / total), squares)


def quartiles(X: Floats | Outside, rows: Rows) -> tuple[Floats, Floats]:
    """Median and spread (d,) each of DRAWN of X[rows], evenly spaced.

    The spread is the distance of the quartiles, of a normal distribution its deviation. A column whose quartiles are
    equal has its deviation instead, as one of 0/1 where fewer than a quarter are 1.
    """
    drawn = X[rows[np.linspace(0, len(rows) - 1, min(DRAWN, len(rows))).astype(int)]]
    low, median, high = np.quantile(drawn, [0.25, 0.5, 0.75], axis=0)
    spread = (high - low) / QUARTILES
    return median, np.where(spread > 0, spread, drawn.std(axis=0))
