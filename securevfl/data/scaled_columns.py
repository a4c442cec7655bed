"""The last step of a preparation: what a model's weights meet, from prepared columns.

The training, decisions and all that explains or exports a model go through `Scaling` and nothing else. Columns that
meet shares are cut off at a clip and rounded to whole numbers of 2^-GRID_BITS: that is a part of their model like any
other. `securevfl.data.scaling` finds the numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.tall import Tall
from securevfl.data.schedule import Rows

__all__ = ["GRID_BITS", "Scaling", "on_grid"]


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
