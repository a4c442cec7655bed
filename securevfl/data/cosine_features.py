"""Random Fourier features of all columns of one party (Rahimi and Recht 2007).

    size cos(w . x + b),    w ~ N(0, 2 gamma I),    b uniform in [0, 2 pi)

Trained sums of these features approximate functions of the Gaussian kernel exp(-gamma |x - x'|^2). They add smooth
curves of several columns to random trees, which follow each column in steps. x are the columns as `LinearFeatures`
scales them. gamma is inversely proportional to the number of columns that vary, so that typical distances match the
width of the kernel. The features are drawn from a key and the columns of the party alone; labels are not used.

A feature mixes all columns of its party, so its value cannot be divided into contributions of columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from securevfl.base.arrays import Floats, SerializableFields
from securevfl.base.normal_distribution import normal_quantile
from securevfl.crypto.prg import Prg
from securevfl.data.linear_features import LinearFeatures
from securevfl.data.scaling import on_grid

GAMMA_PER_COLUMN = 0.75
"""gamma is this number divided by the number of columns that vary; it is 0.15 for five columns."""


@dataclass(frozen=True, repr=False)
class CosineFeatures(SerializableFields):
    """Random features of a party's columns. They are secret, because their scaling depends on the party's rows.

    Attributes:
        columns: the scaling of the columns.
        directions: w of each feature (d, m).
        phases: b of each feature (m,).
        size: the factor by which each cosine is multiplied.
    """

    columns: LinearFeatures
    directions: Floats
    phases: Floats
    size: float

    def __len__(self) -> int:
        return len(self.phases)

    @classmethod
    def draw(cls, X: Floats, key: bytes, *, count: int, weight: float) -> CosineFeatures:
        """Draw features for prepared columns.

        Args:
            X: the columns (n, d) of the training rows alone.
            key: 32 random bytes.
            count: the number of features.
            weight: the norm of a row's `count` features (root mean square over the rows); `size` is derived from it.

        Returns:
            The features.
        """
        columns = LinearFeatures.fit(X, 1.0)
        varying = int(np.isfinite(columns.deviation).sum())
        prg = Prg(key, "cosines of a party's own columns")
        d = X.shape[1]
        uniform = ((prg.array(((d + 1) * count,), np.uint64) >> np.uint64(11)) + 0.5) * 2.0**-53
        sigma = math.sqrt(2 * GAMMA_PER_COLUMN / max(1, varying))
        directions = sigma * normal_quantile(uniform[: d * count].reshape(d, count))
        phases = np.asarray(2 * np.pi * uniform[d * count :], np.float64)
        return cls(columns, directions, phases, weight * math.sqrt(2 / count))

    def __call__(self, X: Floats) -> Floats:
        """Return the features (m, count) of prepared columns X (m, d)."""
        return on_grid(self.size * np.cos(self.columns.scaled(X) @ self.directions + self.phases), np.inf)
