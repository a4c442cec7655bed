"""Scaling of prepared columns: the last step before a model's weights are applied to them.

`Scaling` subtracts a location (mean or median) and divides by a scale; `securevfl.data.location_scale` computes both.
On secret shares the result is also clipped to [-clip, clip] and rounded to the *grid*: multiples of 2^-GRID_BITS.
Training, predictions, explanations and exports use the same scaling, which is part of the model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from securevfl.base.arrays import Floats

GRID_BITS = 8
"""Number of binary digits after the point that a column has on secret shares."""


def on_grid(X: Floats, clip: float) -> Floats:
    """Return X (any shape) clipped to [-clip, clip] and rounded to multiples of 2^-GRID_BITS."""
    rounded: Floats = np.clip(X, -clip, clip)
    rounded *= 2.0**GRID_BITS
    rounded = np.rint(rounded)
    rounded *= 2.0**-GRID_BITS
    return rounded


@dataclass(frozen=True)
class Scaling:
    """Scaling of prepared columns: (x - mean) / deviation, clipped and rounded if `clip` is set.

    Attributes:
        mean: location of each column (d,), its mean or median.
        deviation: scale of each column (d,), its standard deviation or scaled interquartile range; infinite for a
            column whose scaled value is always 0.
        clip: bound at which scaled columns are clipped before they are rounded to the grid; None for neither.
    """

    mean: Floats
    deviation: Floats
    clip: float | None = None

    def __call__(self, X: Floats) -> Floats:
        """Return prepared columns (m, d) scaled, and clipped and rounded if `clip` is set."""
        scaled: Floats = (np.asarray(X, np.float64) - self.mean) / self.deviation
        return scaled if self.clip is None else on_grid(scaled, self.clip)

    @classmethod
    def none(cls, columns: int) -> Scaling:
        """Return a scaling of this number of columns that changes nothing."""
        return cls(np.zeros(columns), np.ones(columns))

    @property
    def ends(self) -> tuple[Floats, Floats]:
        """For each column (d,), the values below and above which it is clipped; infinite if it is not clipped."""
        reach = np.where(np.isfinite(self.deviation), (self.clip or np.inf) * self.deviation, np.inf)
        return self.mean - reach, self.mean + reach
