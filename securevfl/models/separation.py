"""Columns that separate classes: all rows of one class lie on one side of a value, or on it.

The maximum-likelihood estimate is then infinite (Albert and Anderson 1984): coefficients grow with every iteration
and depend on when the training stops. Each party checks what it knows: the label party checks its columns and the
metrics of the model; a party that knows its weights checks how far one column moves the output.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats

MAX_COLUMN_EFFECT = 20.0  # how far the sum of one column moves between its ends: odds of e^20

GROWING_COEFFICIENTS = "their coefficients grow with every visit and are no estimates"


def separating_columns(X: Floats, marked: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which columns (d,) of rows X (n x d) separate one of the classes, marked (n x c), from all others."""
    found = np.zeros(X.shape[1], np.bool_)
    varies = X.min(axis=0) < X.max(axis=0)
    for own in marked.T:
        if 0 < own.sum() < len(own):
            inside, outside = X[own], X[~own]
            above, below = outside.max(axis=0) <= inside.min(axis=0), inside.max(axis=0) <= outside.min(axis=0)
            found |= varies & (above | below)
    return found


def columns_with_large_effect(theta: Floats, X: Floats) -> NDArray[np.bool_]:
    """Return which columns (d,) of rows X (n x d) move f by more than FAR between their ends, by weights (d x c)."""
    return np.asarray(np.abs(theta).max(axis=1) * np.ptp(X, axis=0) > MAX_COLUMN_EFFECT)
