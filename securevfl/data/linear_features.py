"""Linear features: a party's columns, clipped and standardised, in addition to the leaves of its random trees.

Both are inputs of a model that is trained on secret shares (`securevfl.data.forest`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from securevfl.base.arrays import Floats, SerializableFields
from securevfl.data.scaling import on_grid

CLIPPED_SHARE = 0.01
"""A column is clipped at its quantiles of this share and of 1 minus this share, from the training rows."""
MAX_LINEAR_DEVIATIONS = 3.0
"""A standardised feature is clipped at this many standard deviations."""


@dataclass(frozen=True, repr=False)
class LinearFeatures(SerializableFields):
    """Columns clipped at quantiles, standardised by the training rows, and clipped at MAX_LINEAR_DEVIATIONS.

    Attributes:
        low: value at which each column is clipped from below (d,).
        high: value at which each column is clipped from above (d,).
        mean: mean of each clipped column (d,).
        deviation: standard deviation of each clipped column (d,); infinite for constant columns.
        centre: mean of each feature (d,) over the training rows.
        weight: factor by which the features are multiplied, relative to the features of leaves.
    """

    low: Floats
    high: Floats
    mean: Floats
    deviation: Floats
    centre: Floats
    weight: float

    @classmethod
    def fit(cls, X: Floats, weight: float) -> LinearFeatures:
        """Fit the features to prepared columns X (n, d) of the training rows alone.

        A constant column becomes a feature that is 0 in every row.
        """
        low, high = np.quantile(X, [CLIPPED_SHARE, 1 - CLIPPED_SHARE], axis=0)
        is_binary = np.array([len(np.unique(column)) <= 2 for column in X.T])
        unclipped = is_binary | (low == high)
        low, high = np.where(unclipped, -np.inf, low), np.where(unclipped, np.inf, high)
        clipped = np.clip(X, low, high)
        deviation = clipped.std(axis=0)
        deviation = np.where(deviation > 0, deviation, np.inf)
        features = cls(low, high, clipped.mean(axis=0), deviation, np.zeros(X.shape[1]), weight)
        return replace(features, centre=features(X).mean(axis=0))

    def __call__(self, X: Floats) -> Floats:
        """Return the features (m, d) of prepared columns X (m, d)."""
        return on_grid(self.weight * self.scaled(X), np.inf)

    def scaled(self, X: Floats) -> Floats:
        """Return prepared columns X (m, d), clipped, in standard deviations from their means.

        The features are these numbers times `weight`, rounded to the grid of secret shares.
        """
        scaled = (np.clip(X, self.low, self.high) - self.mean) / self.deviation
        return np.clip(scaled, -MAX_LINEAR_DEVIATIONS, MAX_LINEAR_DEVIATIONS)
