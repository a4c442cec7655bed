"""Where columns lie and how far they spread, from as many rows as there are but few of them in memory at a time.

So that a clip and a grid (`securevfl.data.scaling`) lose nothing, `fitted` scales a column of two values so that
both are on the grid and within the clip, and another one that reaches just beyond the clip wider, up to WIDEST times.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.tall import Stretch, Tall
from securevfl.data.schedule import Rows

WIDEST = 4.0  # deviations that a scale may be wider than a column's own
_TWO = 1e-9  # of a variance: how much less than that of two values alone it may be
DRAWN = 1 << 16  # rows that quartiles are taken of
QUARTILES = 1.3489795003921634  # between the quartiles of a normal distribution of deviation 1


class Lie(NamedTuple):
    """How columns lie: their mean or median, their deviation or spread, and both ends (d,) each.

    two: which have two values and no others.
    """

    mean: Floats
    deviation: Floats
    low: Floats
    high: Floats
    two: NDArray[np.bool_]


def fitted(lie: Lie, clip: float) -> Lie:
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


def moments(X: Floats | Outside, rows: Rows) -> Lie:
    """Mean, standard deviation and ends (d,) each of X[rows], as numpy's but for rounding; a deviation of exactly 0 for
    a constant column.

    One pass over blocks of rows in the order given, put together by the pairwise update of Chan, Golub and LeVeque
    (1983). X is an array, or a table outside of memory; rows that lie at workers are passed over there.
    """
    whole = Scaling.none(X.shape[1])
    tall = X.tall(rows, whole) if isinstance(X, Outside) else None
    matrix = Tall.here(ScaledOutsideRows(X, rows, whole)) if tall is None else tall
    coming = [part.run(moments_of) for part in matrix.parts]
    count, mean, squares, low, high = reduce(together, [each.result() for each in coming])
    return _lie(mean, np.sqrt(squares / count), mean, squares / count, low, high)


def _lie(centre: Floats, spread: Floats, mean: Floats, variance: Floats, low: Floats, high: Floats) -> Lie:
    """Say how columns lie, given their moments: no variance is larger than (high - mean) (mean - low), and that of two
    values alone is as large (Bhatia and Davis 2000)."""
    most = (high - mean) * (mean - low)
    return Lie(centre, spread, low, high, (variance > 0) & (variance >= (1 - _TWO) * most))


class Moments(NamedTuple):
    """The moments of some rows: how many there are, their mean (d,), the sum of squared differences from it (d,), and
    the least and the largest (d,)."""

    rows: int
    mean: Floats
    squares: Floats
    low: Floats
    high: Floats


def moments_of(stretch: Stretch) -> Moments:
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


def quartiles(X: Floats | Outside, rows: Rows) -> Lie:
    """Median, spread and ends (d,) each of DRAWN of X[rows], evenly spaced.

    The spread is the distance of the quartiles, of a normal distribution its deviation. A column whose quartiles are
    equal has its deviation instead, as one of 0/1 where fewer than a quarter are 1.
    """
    drawn = X[rows[np.linspace(0, len(rows) - 1, min(DRAWN, len(rows))).astype(int)]]
    low, median, high = np.quantile(drawn, [0.25, 0.5, 0.75], axis=0)
    spread = (high - low) / QUARTILES
    spread = np.where(spread > 0, spread, drawn.std(axis=0))
    return _lie(median, spread, drawn.mean(axis=0), drawn.var(axis=0), drawn.min(axis=0), drawn.max(axis=0))


# The last step of a preparation: what a model's weights meet, from prepared columns.
#
# The training, decisions and all that explains or exports a model go through `Scaling` and nothing else. Columns that
# meet shares are cut off at a clip and rounded to whole numbers of 2^-GRID_BITS: that is a part of their model like any
# other. `securevfl.data.scaling` finds the numbers.


GRID_BITS = 8  # fractional bits of a column that meets shares


def on_grid(X: Floats, clip: float) -> Floats:
    """Return X (any shape) cut off at `clip` and rounded to whole numbers of 2^-GRID_BITS."""
    cut: Floats = np.clip(X, -clip, clip)
    cut *= 2.0**GRID_BITS
    cut = np.rint(cut)
    cut *= 2.0**-GRID_BITS
    return cut


@dataclass(frozen=True)
class Scaling:
    """What a model's weights meet, from prepared columns: their distance from `mean` in deviations (d,) each.

    clip: where scaled columns are cut off before they are rounded to the grid; None where they are neither.
    """

    mean: Floats
    deviation: Floats
    clip: float | None = None

    def __call__(self, X: Floats) -> Floats:
        """Return prepared columns (m x d) as they are trained on."""
        scaled: Floats = (np.asarray(X, np.float64) - self.mean) / self.deviation
        return scaled if self.clip is None else on_grid(scaled, self.clip)

    @classmethod
    def none(cls, columns: int) -> Scaling:
        """Return what leaves so many columns as they are."""
        return cls(np.zeros(columns), np.ones(columns))

    @property
    def ends(self) -> tuple[Floats, Floats]:
        """The values (d,) below and above which columns make no further difference; infinite where there are none."""
        reach = np.where(np.isfinite(self.deviation), (self.clip or np.inf) * self.deviation, np.inf)
        return self.mean - reach, self.mean + reach


# Tables whose rows are not in this process's memory: on disk, or in partitions at the workers of an engine.


class Outside(ABC):
    """Rows that read like an array where they are asked for: `shape`, `len`, and X[rows], copies in float64."""

    ndim = 2
    shape: tuple[int, int]
    apart = False  # whether they lie at other processes

    def __len__(self) -> int:
        return self.shape[0]

    @abstractmethod
    def __getitem__(self, rows: Rows | slice) -> Floats:
        """Return these rows (k x d), in this process."""

    @abstractmethod
    def tall(self, rows: Rows, scaling: Scaling) -> Tall | None:
        """Return these rows, scaled, as a matrix that stays where it is; None where they are better read."""


class ScaledOutsideRows:
    """Some rows (m x d) of a table, scaled when they are read by slices."""

    def __init__(self, table: Floats | Outside, rows: Rows | slice, scaling: Scaling) -> None:
        count = len(range(*rows.indices(len(table)))) if isinstance(rows, slice) else len(rows)
        self.shape = count, table.shape[1]
        self._table = table
        self._rows = rows
        self._scaling = scaling

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice, /) -> Floats:
        if isinstance(self._rows, slice):
            start, stop, step = rows.indices(len(self))
            first = self._rows.start or 0
            own = self._table[first + start : first + stop : step]
        else:
            own = self._table[self._rows[rows]]
        return self._scaling(own)


def runs(rows: Rows) -> Rows | slice:
    """Row numbers that follow each other, as the slice that they are; others as they come."""
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all():
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows
