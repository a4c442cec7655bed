"""Location (mean or median) and scale (deviation or quartile range) of columns, read in blocks of rows.

Moments are the mean and the sum of squared deviations of each column over some rows.

On secret shares, scaled columns are clipped to [-clip, clip] and rounded to a grid of fixed-point numbers
(`securevfl.data.scaling`). `clip_free` changes a scale slightly so that this alters no value: both values of a
two-valued column get onto the grid, and a column that exceeds the clip a little gets a wider scale, by a factor of at
most MAX_WIDENING.
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

MAX_WIDENING = 4.0
"""The factor by which a scale may exceed the deviation of its column."""
# a column counts as two-valued if its variance is within this share of the maximum for its mean and its range
_TWO_VALUE_TOLERANCE = 1e-9
MAX_QUANTILE_ROWS = 1 << 16
"""Maximum number of rows from which quartiles are computed."""
QUARTILES = 1.3489795003921634
"""The interquartile range of a standard normal distribution."""


class LocationScale(NamedTuple):
    """Location and scale of columns.

    Attributes:
        mean: mean or median of each column (d,).
        deviation: standard deviation, or normalised interquartile range, of each column (d,).
        low: minimum of each column (d,).
        high: maximum of each column (d,).
        two_valued: whether each column (d,) has exactly two values.
    """

    mean: Floats
    deviation: Floats
    low: Floats
    high: Floats
    two_valued: NDArray[np.bool_]


def clip_free(columns: LocationScale, clip: float) -> LocationScale:
    """Adjust the scale of columns so that clipping and rounding change no value, if that is possible.

    It is possible for columns of two values, and for columns whose scaled values are at most MAX_WIDENING times the
    clip.

    Args:
        columns: location and scale.
        clip: bound of the scaled columns.

    Returns:
        The adjusted location and scale.
    """
    needed = np.maximum(columns.high - columns.mean, columns.mean - columns.low) / clip
    fits = columns.two_valued | (needed <= MAX_WIDENING * columns.deviation)
    varies = np.isfinite(columns.deviation)
    deviation = np.where(fits & varies, np.maximum(columns.deviation, needed), columns.deviation)
    mean, clip_steps, two = columns.mean.copy(), clip * 2.0**GRID_BITS, columns.two_valued & varies
    gap = (columns.high - columns.low)[two]
    steps = np.maximum(1.0, np.floor(gap / deviation[two] * 2.0**GRID_BITS))  # distance of the two values in grid steps
    scale = gap / steps * 2.0**GRID_BITS
    low = np.rint((columns.low - columns.mean)[two] / scale * 2.0**GRID_BITS)
    low = np.clip(low, -clip_steps, clip_steps - steps)
    deviation[two], mean[two] = scale, columns.low[two] - low * scale * 2.0**-GRID_BITS
    return columns._replace(mean=mean, deviation=deviation)


def moments(X: Floats | ExternalTable, rows: Rows) -> LocationScale:
    """Return mean and standard deviation of each column of X[rows], as numpy would except for rounding errors.

    A constant column has a deviation of exactly 0. The rows are read once, in blocks, whose moments are merged by the
    pairwise update of Chan, Golub and LeVeque (1983). If worker processes have the rows in their memory, they compute
    the moments of these rows.

    Args:
        X: a table (n, d) in memory or outside of it.
        rows: rows of the table, in the order in which they are read.

    Returns:
        Location and scale of the columns.
    """
    identity = Scaling.none(X.shape[1])
    remote = X.scaled_matrix(rows, identity) if isinstance(X, ExternalTable) else None
    matrix = ChunkedMatrix.local(ScaledExternalRows(X, rows, identity)) if remote is None else remote
    futures = [part.run(chunk_moments) for part in matrix.parts]
    count, mean, squares, low, high = reduce(merge_moments, [future.result() for future in futures])
    return _location_scale(mean, np.sqrt(squares / count), mean, squares / count, low, high)


def _location_scale(
    location: Floats, scale: Floats, mean: Floats, variance: Floats, low: Floats, high: Floats
) -> LocationScale:
    """Combine moments (d,) of columns into a `LocationScale`, and find the columns that have exactly two values.

    A variance is at most (high - mean) * (mean - low). It equals this bound exactly if a column has two values (Bhatia
    and Davis 2000).
    """
    bound = (high - mean) * (mean - low)
    two_valued = (variance > 0) & (variance >= (1 - _TWO_VALUE_TOLERANCE) * bound)
    return LocationScale(location, scale, low, high, two_valued)


class Moments(NamedTuple):
    """Moments of the columns of some rows. Moments of disjoint sets of rows can be merged (`merge_moments`).

    Attributes:
        rows: the number of rows.
        mean: mean of each column (d,).
        squares: sum of squared deviations from the mean of each column (d,).
        low: minimum of each column (d,).
        high: maximum of each column (d,).
    """

    rows: int
    mean: Floats
    squares: Floats
    low: Floats
    high: Floats


def chunk_moments(stretch: RowChunk) -> Moments:
    """Return the moments of the columns of one chunk of rows, which is read in blocks to save memory."""
    origin = stretch.rows[:1]
    zero = np.zeros(origin.shape[1])
    total = Moments(0, zero, zero, zero, zero)
    for _, X in stretch.blocks():
        shifted = X - origin
        mean = shifted.mean(axis=0)
        squares = ((shifted - mean) ** 2).sum(axis=0)
        total = merge_moments(total, Moments(len(shifted), mean, squares, shifted.min(axis=0), shifted.max(axis=0)))
    return total._replace(**{name: origin[0] + getattr(total, name) for name in ("mean", "low", "high")})


def merge_moments(one: Moments, other: Moments) -> Moments:
    """Return the moments of the union of two sets of rows."""
    difference, total = other.mean - one.mean, one.rows + other.rows
    squares = one.squares + (other.squares + difference**2 * (one.rows * other.rows / total))
    low, high = np.minimum(one.low, other.low), np.maximum(one.high, other.high)
    return Moments(total, one.mean + difference * (other.rows / total), squares, low, high)


def quartiles(X: Floats | ExternalTable, rows: Rows) -> LocationScale:
    """Return median and normalised interquartile range of X[rows], from at most MAX_QUANTILE_ROWS of them.

    The interquartile range is divided by that of a standard normal distribution. A column with equal quartiles, such as
    a 0/1 column with fewer than a quarter of ones, gets its standard deviation instead.

    Args:
        X: a table (n, d) in memory or outside of it.
        rows: rows of the table.

    Returns:
        Location and scale of the columns.
    """
    selected = np.linspace(0, len(rows) - 1, min(MAX_QUANTILE_ROWS, len(rows))).astype(int)
    sample = X[rows[selected]]
    low, median, high = np.quantile(sample, [0.25, 0.5, 0.75], axis=0)
    scale = (high - low) / QUARTILES
    scale = np.where(scale > 0, scale, sample.std(axis=0))
    mean, variance = sample.mean(axis=0), sample.var(axis=0)
    return _location_scale(median, scale, mean, variance, sample.min(axis=0), sample.max(axis=0))
