"""How many numbers per row are enough to recover the columns of a table, judged by a party that has the table.

The party that collects a sum sees X_b theta_t for unknown weights that change: t = 1 ... T, each in double precision.
From T c >= rank(X_b) on, these span the columns, and known rows or columns of two values identify them. Two properties
of the table make fewer numbers enough:

*Correlated columns.* The largest principal components appear first, because gradients point along them. The number of
components that hold `NEARLY_ALL` of the variance is enough to show nearly all columns.

*Columns of few values.* Every number has `BITS_PER_NUMBER` bits. If all columns are 0/1, integers u with u . h = 0 for
all received h are short only if u is orthogonal to every column. Lattice reduction (LLL) finds them and with them the
space of the columns: the hidden subset sum problem (Nguyen and Stern 1999; Coron and Gini 2020). Measured with LLL in
double precision: the space of 14 columns of 0/1 from one number per row, of 24 from two; of 8 columns of 64 values from
two, of 4,096 values from four; of 8 columns of 0/1 and one of reals from two. So a column whose values lie on a grid of
V places counts as (log2 V + 1) / `BITS_PER_NUMBER` of a number: 1/25 for 0/1. A column that others determine, such as
the last of a one-hot group, counts as nothing.

No column counts as more than `MAX_NUMBERS_PER_COLUMN` of a number. The weights follow from X and from residuals that
the active party knows, so it sees products of X X^T with known vectors. These have far fewer unknowns than X theta_t.
"""

from __future__ import annotations

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.disclosure.information_content import EQUAL_VALUES

NEARLY_ALL = 0.9
MAX_NUMBERS_PER_COLUMN = 0.5
BITS_PER_NUMBER = 50
CLEARLY_INDEPENDENT = 1e-4
"""Distance of a column of length 1 from the span of others beyond which products of doubles are reliable."""
MAX_GRID_ERROR = 1e-3
"""Distance of a value from its grid place, in grid steps, up to which the column counts as on a grid."""
MAX_SAMPLE_ROWS = 4096
"""Rows of a table that are inspected at most."""


def numbers_for_recovery(X: Floats) -> float:
    """Return how many numbers per row are enough to recover the columns of X.

    Args:
        X: some rows of a table (n, d), scaled or not.

    Returns:
        The number; infinity if no column varies.
    """
    by_value = sum(_numbers_of_column(column) for column in independent_columns(X).T)
    components = int((np.cumsum(component_variances(X)) < NEARLY_ALL - 1e-12).sum()) + 1
    return min(by_value, MAX_NUMBERS_PER_COLUMN * len(X), float(components)) if by_value else np.inf


def variance_share(X: Floats, numbers: int) -> float:
    """Return the largest share of the variance of the columns of X (n, d) that `numbers` numbers per row can hold."""
    return float(min(1.0, component_variances(X)[:numbers].sum()))


def _numbers_of_column(column: Floats) -> float:
    """Return as how many numbers one column (n,) counts.

    The column counts by the grid on which its values lie, or as one 0/1 column for each value but one. Values that miss
    their grid places by a share e of a step leave log2(1 / e) bits of a number.
    """
    values = np.unique(column)
    value_range, steps = values[-1] - values[0], np.diff(values)
    steps = steps[steps > EQUAL_VALUES * value_range]
    places = (values - values[0]) / steps.min()
    grid_error = float(np.abs(places - np.rint(places)).max())
    bits = min(BITS_PER_NUMBER, -np.log2(max(grid_error, 2.0**-BITS_PER_NUMBER)))
    on_grid = (np.log2(places[-1] + 1) + 1) / bits if grid_error < MAX_GRID_ERROR else MAX_NUMBERS_PER_COLUMN
    return float(min(MAX_NUMBERS_PER_COLUMN, on_grid, 2 * len(steps) / BITS_PER_NUMBER))


def independent_columns(X: Floats) -> Floats:
    """Return the columns of X (n, d) that vary and that, with the constant 1, do not determine each other.

    Columns of few values are preferred and come first.
    """
    value_counts = np.array([len(np.unique(column)) for column in X.T])
    ordered = X[:, np.argsort(value_counts, kind="stable")]
    scaled = standardised_columns(ordered)
    if _clearly_independent(scaled):
        return ordered
    independent = np.abs(np.diag(np.linalg.qr(scaled, mode="r"))) > EQUAL_VALUES
    return ordered[:, : len(independent)][:, independent]


def _clearly_independent(scaled: Floats) -> bool:
    """Return whether columns of length 1 (n, d) are independent beyond doubt, judged by their products alone.

    The diagonal of the Cholesky factor is that of R in the QR decomposition, with half the digits. It takes a fraction
    of the time if there are many columns. False leaves the decision to QR.
    """
    n, d = scaled.shape
    if d >= n:
        return False
    try:
        factor = np.linalg.cholesky(scaled.T @ scaled)
    except np.linalg.LinAlgError:
        return False
    return bool((np.diag(factor) > CLEARLY_INDEPENDENT).all())


def standardised_columns(X: Floats) -> Floats:
    """Centre the columns of X (n, d) and scale them to length 1; constant columns become zero."""
    centred = X - X.mean(axis=0)
    lengths = np.linalg.norm(centred, axis=0)
    varies = lengths > EQUAL_VALUES * np.linalg.norm(X, axis=0)
    return np.where(varies, centred, 0.0) / np.where(varies, lengths, 1.0)


def component_variances(X: Floats) -> Floats:
    """Return the shares of the variance of the standardised columns along the principal components, largest first."""
    scaled = standardised_columns(X)
    products = scaled.T @ scaled if X.shape[1] <= X.shape[0] else scaled @ scaled.T
    squared_singular_values = np.maximum(np.linalg.eigvalsh(products)[::-1], 0.0)
    return squared_singular_values / max(1.0, squared_singular_values.sum())
