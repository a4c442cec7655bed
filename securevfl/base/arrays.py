"""The arrays that all rooms pass to each other."""

from __future__ import annotations

from statistics import NormalDist
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class RowSlices(Protocol):
    """Rows (n x d) that are read by slices; an array is one."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Floats: ...


# The normal distribution, by the standard library: scipy for it would be larger than everything else.

_NORMAL = NormalDist()


def normal_quantile(p: NDArray[np.floating]) -> Floats:
    """Return the z with P(Z <= z) = p for a standard normal Z and p in (0, 1), of any shape; 1 counts as 1 - 2^-53."""
    within = np.minimum(p, 1.0 - 2.0**-53).ravel()
    return np.fromiter(map(_NORMAL.inv_cdf, within.tolist()), np.float64, within.size).reshape(p.shape)


def normal_cdf(z: float) -> float:
    """P(Z <= z) for a standard normal Z."""
    return _NORMAL.cdf(z)
