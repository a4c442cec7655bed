"""Columns that separate classes: a threshold on the column divides the rows of one class from all others.

The maximum-likelihood estimate is then infinite (Albert and Anderson 1984): coefficients grow with every iteration and
depend on when the training stops. Each party checks what it can: the label party checks its columns and the metrics of
the model; a party that knows its weights checks how far one column moves the model output f.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats

MAX_COLUMN_EFFECT = 20.0
"""A column whose minimum and maximum change f by more than this is suspected to separate: odds change by e^20."""
GROWING_COEFFICIENTS = "their coefficients grow with every iteration and are not estimates"


def separating_columns(X: Floats, marked: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which columns (d,) of X (n, d) separate one class from all others.

    Args:
        X: the columns.
        marked: whether each row belongs to each of c classes (n, c).

    Returns:
        Whether each column separates a class.
    """
    separates = np.zeros(X.shape[1], np.bool_)
    varies = X.min(axis=0) < X.max(axis=0)
    for is_member in marked.T:
        if 0 < is_member.sum() < len(is_member):
            members, others = X[is_member], X[~is_member]
            above = others.max(axis=0) <= members.min(axis=0)
            below = members.max(axis=0) <= others.min(axis=0)
            separates |= varies & (above | below)
    return separates


def columns_with_large_effect(theta: Floats, X: Floats) -> NDArray[np.bool_]:
    """Return which columns (d,) of X (n, d) move f by more than MAX_COLUMN_EFFECT, with the weights theta (d, c)."""
    return np.asarray(np.abs(theta).max(axis=1) * np.ptp(X, axis=0) > MAX_COLUMN_EFFECT)
