"""The standard normal distribution, from the standard library so that scipy need not be installed."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats

_NORMAL = NormalDist()


def normal_quantile(p: NDArray[np.floating]) -> Floats:
    """Return z with P(Z <= z) = p for a standard normal Z.

    Args:
        p: probabilities in (0, 1], of any shape; 1 counts as 1 - 2^-53.

    Returns:
        The quantiles, in the shape of `p`.
    """
    below_one = np.minimum(p, 1.0 - 2.0**-53).ravel()
    return np.fromiter(map(_NORMAL.inv_cdf, below_one.tolist()), np.float64, below_one.size).reshape(p.shape)


def normal_cdf(z: float) -> float:
    """Return P(Z <= z) for a standard normal Z."""
    return _NORMAL.cdf(z)
