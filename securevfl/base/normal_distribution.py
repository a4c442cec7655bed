"""The normal distribution, by the standard library: scipy for it would be larger than everything else."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats

_NORMAL = NormalDist()


def normal_quantile(p: NDArray[np.floating]) -> Floats:
    """Return the z with P(Z <= z) = p for a standard normal Z and p in (0, 1), of any shape; 1 counts as 1 - 2^-53."""
    within = np.minimum(p, 1.0 - 2.0**-53).ravel()
    return np.fromiter(map(_NORMAL.inv_cdf, within.tolist()), np.float64, within.size).reshape(p.shape)


def normal_cdf(z: float) -> float:
    """P(Z <= z) for a standard normal Z."""
    return _NORMAL.cdf(z)
