"""Location and scale of columns, from all rows but with few of them in memory at a time.

`clip_free` adjusts a scale so that the clip and the grid of `securevfl.data.scaling` change no value: both values of
a two-valued column lie on the grid and within the clip, and a column that slightly exceeds the clip gets a wider
scale, by a factor of at most MAX_WIDENING.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import ChunkedMatrix, RowChunk
from securevfl.data.external_table import ExternalTable, ScaledExternalRows
from securevfl.data.scaling import GRID_BITS, Scaling
from securevfl.data.schedule import Rows

WIDEST = 4.0  # deviations that a scale may be wider than a column's own

_TWO = 1e-9  # of a variance: how much less than that of two values alone it may be

DRAWN = 1 << 16  # rows that quartiles are taken of

QUARTILES = 1.3489795003921634  # between the quartiles of a normal distribution of deviation 1


class LocationScale(NamedTuple):
    """How columns lie: their mean or median, their deviation or spread, and both ends (d,) each.

    two: which have two values and no others.
    """

    mean: Floats
    deviation: Floats
    low: Floats
    high: Floats
    two: NDArray[np.bool_]


def fitted(lie: LocationScale, clip: float) -> LocationScale:
    """Return a scale by which a clip loses nothing, where there is one: of any column of two values, and of others that
    reach no further than WIDEST clips."""
    far = np.maximum(lie.high - lie.mean, lie.mean - lie.low) / clip
    fits = lie.two | (far <= WIDEST * lie.deviation)
    deviation = np.where(fits & np.isfinite(lie.deviation), np.maximum(lie.deviation, far), lie.deviation)
    mean, most, two = lie.mean.copy(), clip * 2.0**GRID_BITS, lie.two & np.isfinite(lie.deviation)
    gap = (lie.high - lie.low)[two]
    steps = np.maximum(1.0, np.floor(gap / deviation[two] * 2.0**GRID_BITS))  # from one value to the other
    wide = gap / steps * 2.0**GRID_BITS
    first = np.clip(np.rint((lie.low - lie.mean)[two] / wide * 2.0**GRID_BITS), -most, most - steps)
    deviation[two], mean[two] = wide, lie.low[two] - first * wide * 2.0**-GRID_BITS
    return lie._replace(mean=mean, deviation=deviation)


def moments(X: Floats | ExternalTable, rows: Rows) -> LocationScale:
    """Mean, standard deviation and ends (d,) each of X[rows], as numpy's but for rounding; a deviation of exactly 0 for
    a constant column.

    One pass over blocks of rows in the order given, put together by the pairwise update of Chan, Golub and LeVeque
    (1983). X is an array, or a table outside of memory; rows that lie at workers are passed over there.
    """
    whole = Scaling.none(X.shape[1])
    tall = X.tall(rows, whole) if isinstance(X, ExternalTable) else None
    matrix = ChunkedMatrix.local(ScaledExternalRows(X, rows, whole)) if tall is None else tall
    coming = [part.run(chunk_moments) for part in matrix.parts]
    count, mean, squares, low, high = reduce(together, [each.result() for each in coming])
    return _lie(mean, np.sqrt(squares / count), mean, squares / count, low, high)


def _lie(centre: Floats, spread: Floats, mean: Floats, variance: Floats, low: Floats, high: Floats) -> LocationScale:
    """Say how columns lie, given their moments: no variance is larger than (high - mean) (mean - low), and that of two
    values alone is as large (Bhatia and Davis 2000)."""
    most = (high - mean) * (mean - low)
    return LocationScale(centre, spread, low, high, (variance > 0) & (variance >= (1 - _TWO) * most))


class Moments(NamedTuple):
    """The moments of some rows: how many there are, their mean (d,), the sum of squared differences from it (d,), and
    the least and the largest (d,)."""

    rows: int
    mean: Floats
    squares: Floats
    low: Floats
    high: Floats


def chunk_moments(stretch: RowChunk) -> Moments:
    """Return the moments of the rows of a stretch, reading few of them into memory at a time."""
    origin = stretch.rows[:1]
    zero = np.zeros(origin.shape[1])
    found = Moments(0, zero, zero, zero, zero)
    for _, X in stretch.blocks():
        chunk = X - origin
        own = chunk.mean(axis=0)
        squares = ((chunk - own) ** 2).sum(axis=0)
        found = together(found, Moments(len(chunk), own, squares, chunk.min(axis=0), chunk.max(axis=0)))
    return found._replace(**{name: origin[0] + getattr(found, name) for name in ("mean", "low", "high")})


def together(one: Moments, other: Moments) -> Moments:
    """Combine the moments of two sets of rows into those of all the rows together."""
    apart, total = other.mean - one.mean, one.rows + other.rows
    squares = one.squares + (other.squares + apart**2 * (one.rows * other.rows / total))
    low, high = np.minimum(one.low, other.low), np.maximum(one.high, other.high)
    return Moments(total, one.mean + apart * (other.rows / total), squares, low, high)


def quartiles(X: Floats | ExternalTable, rows: Rows) -> LocationScale:
    """Median, spread and ends (d,) each of DRAWN of X[rows], evenly spaced.

    The spread is the distance of the quartiles, of a normal distribution its deviation. A column whose quartiles are
    equal has its deviation instead, as one of 0/1 where fewer than a quarter are 1.
    """
    drawn = X[rows[np.linspace(0, len(rows) - 1, min(DRAWN, len(rows))).astype(int)]]
    low, median, high = np.quantile(drawn, [0.25, 0.5, 0.75], axis=0)
    spread = (high - low) / QUARTILES
    spread = np.where(spread > 0, spread, drawn.std(axis=0))
    return _lie(median, spread, drawn.mean(axis=0), drawn.var(axis=0), drawn.min(axis=0), drawn.max(axis=0))
