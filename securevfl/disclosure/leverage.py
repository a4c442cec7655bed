"""Leverage: rows that are nearly alone in a party's columns, so that their residual and label are nearly disclosed.

A party that learns X^T g (X: the n x d rows of a batch) knows the projection H g on the span of its columns, where H
= X (X^T X)^-1 X^T is the hat matrix. Its diagonal h_ii, the leverage (Hoaglin and Welsch 1978), is the weight of g_i
itself in that projection. The remainder is an average over other rows with weight at most sqrt(h_ii (1 - h_ii)). A
column that is 1 in a single row of the batch (a rare value, one-hot) makes h_ii = 1, however large the batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from securevfl.base.arrays import Floats

HIGH_LEVERAGE = 0.9


@dataclass(frozen=True)
class Leverage:
    """Leverage over all batches.

    Attributes:
        rows: number of rows.
        singled_out: number of rows with h_ii > `HIGH_LEVERAGE`.
        largest: the largest h_ii.
    """

    rows: int
    singled_out: int
    largest: float


def leverages(X: Floats) -> Floats:
    """Return h_ii (n,) of X (n, d), from singular values; columns that others determine add nothing."""
    U, singular_values, _ = np.linalg.svd(X, full_matrices=False)
    tolerance = singular_values.max(initial=0.0) * max(X.shape) * np.finfo(np.float64).eps
    rank = int((singular_values > tolerance).sum())
    return np.einsum("ij,ij->i", U[:, :rank], U[:, :rank])


def measure_leverage(batches: Iterable[Floats]) -> Leverage:
    """Measure the leverage of the rows of a party's batches (n, d), scaled as in training."""
    rows, singled_out, largest = 0, 0, 0.0
    for X in batches:
        h = leverages(X)
        rows += len(h)
        singled_out += int((h > HIGH_LEVERAGE).sum())
        largest = max(largest, float(h.max(initial=0.0)))
    return Leverage(rows, singled_out, largest)
