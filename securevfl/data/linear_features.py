"""Columns as clipped and standardised features, in addition to the leaves of random trees."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from securevfl.base.arrays import Floats, SerializableFields
from securevfl.data.scaling import on_grid

ENDS = 0.01  # of the training rows at either end of a column, at which its line is cut off

FARTHEST = 3.0  # deviations from the mean at which a line is cut off


@dataclass(frozen=True, repr=False)
class LinearFeatures(SerializableFields):
    """The straight part: columns cut off at their ends, scaled by the training rows, and cut off at FARTHEST.

    low, high, mean, deviation (d,): of each column; `weight` is what they are multiplied by beside leaves. centre (d,):
    the mean of the lines themselves over the training rows.
    """

    low: Floats
    high: Floats
    mean: Floats
    deviation: Floats
    centre: Floats
    weight: float

    @classmethod
    def fit(cls, X: Floats, weight: float) -> LinearFeatures:
        """Fit the lines to prepared columns X (n x d) of the training rows, and of no others.

        What does not vary is 0 in every row.
        """
        low, high = np.quantile(X, [ENDS, 1 - ENDS], axis=0)
        few = np.array([len(np.unique(column)) <= 2 for column in X.T])
        whole = few | (low == high)
        low, high = np.where(whole, -np.inf, low), np.where(whole, np.inf, high)
        cut = np.clip(X, low, high)
        deviation = cut.std(axis=0)
        deviation = np.where(deviation > 0, deviation, np.inf)
        made = cls(low, high, cut.mean(axis=0), deviation, np.zeros(X.shape[1]), weight)
        return replace(made, centre=made(X).mean(axis=0))

    def __call__(self, X: Floats) -> Floats:
        """Compute the lines (m x d) of prepared columns X (m x d)."""
        return on_grid(self.weight * self.scaled(X), np.inf)

    def scaled(self, X: Floats) -> Floats:
        """Return prepared columns X (m x d) cut off at their ends, in deviations from their means."""
        scaled = (np.clip(X, self.low, self.high) - self.mean) / self.deviation
        return np.clip(scaled, -FARTHEST, FARTHEST)
