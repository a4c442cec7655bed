"""Leverage: a measure of how nearly a gradient reveals the label of a single row.

In a step of a training, a party learns the gradient X^T g. X (n, d) are its columns in a batch of n rows, and g (n,)
are the residuals of these rows (the derivatives of the loss by the model's outputs), which depend on the labels. So the
party can compute the projection H g of g on the span of its columns, with the hat matrix H = X (X^T X)^-1 X^T. The
diagonal entry h_ii, the leverage of row i (Hoaglin and Welsch 1978), is the weight of g_i in entry i of H g. The
weights of the other rows in that entry are at most sqrt(h_ii (1 - h_ii)). A column that is 1 in a single row of the
batch and 0 elsewhere (the one-hot column of a rare value) makes h_ii = 1, however large the batch is. A row with
h_ii > `HIGH_LEVERAGE` is called singled out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from securevfl.base.arrays import Floats

HIGH_LEVERAGE = 0.9


@dataclass(frozen=True)
class Leverage:
    """How far gradients reveal single labels: the leverage of the rows in a party's batches.

    Attributes:
        rows: number of rows.
        singled_out: number of rows with h_ii > `HIGH_LEVERAGE`.
        largest: the largest h_ii.
    """

    rows: int
    singled_out: int
    largest: float


def leverages(X: Floats) -> Floats:
    """Return the leverages h_ii (..., n) of batches X (..., n, d), from their singular value decompositions.

    Singular values at the level of rounding errors are left out, so that linearly dependent columns add nothing.
    """
    U, singular_values, _ = np.linalg.svd(X, full_matrices=False)
    tolerance = singular_values.max(axis=-1, initial=0.0, keepdims=True) * max(X.shape[-2:]) * np.finfo(np.float64).eps
    inside: Floats = U * (singular_values > tolerance)[..., None, :]
    return np.einsum("...ij,...ij->...i", inside, inside)


def measure_leverage(batches: Iterable[Floats], *, together: int = 1 << 16) -> Leverage:
    """Measure the leverage of the rows of a party's batches (n, d), scaled as in training.

    Args:
        batches: the batches.
        together: number of entries of small batches that are decomposed in one call.

    Returns:
        The number of rows, of those that are singled out, and the largest leverage.
    """
    rows, singled_out, largest = 0, 0, 0.0
    for X in _stacks(batches, together):
        h = leverages(X)
        rows += h.size
        singled_out += int((h > HIGH_LEVERAGE).sum())
        largest = max(largest, float(h.max(initial=0.0)))
    return Leverage(rows, singled_out, largest)


def _stacks(batches: Iterable[Floats], together: int) -> Iterator[Floats]:
    """Yield successive batches of one shape as arrays (batches, n, d), because calls for single rows take long."""
    stack: list[Floats] = []
    for X in batches:
        if stack and (X.shape != stack[0].shape or X.size * len(stack) >= together):
            yield np.stack(stack)
            stack = []
        stack.append(X)
    if stack:
        yield np.stack(stack)
