"""Where columns lie and how far they spread, from as many rows as there are but few of them in memory at a time.

So that a clip and a grid (`securevfl.data.scaling`) lose nothing, `fitted` scales a column of two values so that
both are on the grid and within the clip, and another one that reaches just beyond the clip wider, up to WIDEST times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from securevfl.base.arrays import Floats

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
