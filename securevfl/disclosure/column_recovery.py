"""How many numbers per row are enough to recover the columns of a table, computed by a party that has the table.

Each time that the parties of a training sum their model outputs, the party that collects the sum receives one number
for each row: h = X theta. X are the columns of the other parties, and theta are their weights, which the receiver does
not know and which change from sum to sum. If d columns are independent, d such numbers per row span the same space as
the columns, and some rows with known values then identify the columns. Fewer numbers are enough for two kinds of table:
- *Correlated columns*: numbers that span the principal components with `NEARLY_ALL` of the variance are enough.
- *Columns of few values*: if values lie on a grid of V equidistant points, a column counts as (log2 V + 1) /
  `BITS_PER_NUMBER` numbers, which is 1/25 of a number for a 0/1 column. Lattice reduction (LLL) finds such columns (the
  hidden subset sum problem: Nguyen and Stern 1999; Coron and Gini 2020). A linear combination of other columns counts
  as 0.

No column counts as more than `MAX_NUMBERS_PER_COLUMN` numbers, because the receiver also knows the residuals (the
derivatives of the loss by the outputs), from which the parties compute each change of the weights.
"""

from __future__ import annotations

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.disclosure.information_content import EQUAL_VALUES

NEARLY_ALL = 0.9
"""Share of the variance whose recovery counts as recovery of the columns."""
MAX_NUMBERS_PER_COLUMN = 0.5
BITS_PER_NUMBER = 50
"""Number of bits of one received number that an attacker is assumed to use; a float64 has 53."""
CLEARLY_INDEPENDENT = 1e-4
"""A column of length 1 whose distance from the span of the others exceeds this is independent, in spite of rounding."""
MAX_GRID_ERROR = 1e-3
"""The values of a column lie on a grid if each is at most this share of a grid step away from a point of the grid."""
MAX_SAMPLE_ROWS = 4096
"""Maximum number of rows of a table that callers inspect."""


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
    """Return the largest share of the variance of X (n, d) that `numbers` linear combinations per row can contain."""
    return float(min(1.0, component_variances(X)[:numbers].sum()))


def _numbers_of_column(column: Floats) -> float:
    """Return how many numbers per row are enough for one column (n,), a fraction if its values have few bits.

    The result is the smallest of three numbers: `MAX_NUMBERS_PER_COLUMN`; the number for its grid, if its values lie on
    one (see the module's docstring); and the number for its one-hot encoding, 2 / `BITS_PER_NUMBER` for each value
    except the first. If values miss the points of the grid by a share e of a grid step, only log2(1 / e) bits of each
    received number are usable.
    """
    values = np.unique(column)
    value_range, steps = values[-1] - values[0], np.diff(values)
    steps = steps[steps > EQUAL_VALUES * value_range]
    points = (values - values[0]) / steps.min()
    grid_error = float(np.abs(points - np.rint(points)).max())
    bits = min(BITS_PER_NUMBER, -np.log2(max(grid_error, 2.0**-BITS_PER_NUMBER)))
    on_grid = (np.log2(points[-1] + 1) + 1) / bits if grid_error < MAX_GRID_ERROR else MAX_NUMBERS_PER_COLUMN
    return float(min(MAX_NUMBERS_PER_COLUMN, on_grid, 2 * len(steps) / BITS_PER_NUMBER))


def independent_columns(X: Floats) -> Floats:
    """Return the columns of X (n, d) that are linearly independent of each other and of the constant 1: (n, r).

    They are ordered by their number of distinct values. If columns are dependent, those with more values are dropped.
    """
    value_counts = np.array([len(np.unique(column)) for column in X.T])
    ordered = X[:, np.argsort(value_counts, kind="stable")]
    scaled = standardised_columns(ordered)
    if _clearly_independent(scaled):
        return ordered
    independent = np.abs(np.diag(np.linalg.qr(scaled, mode="r"))) > EQUAL_VALUES
    return ordered[:, : len(independent)][:, independent]


def _clearly_independent(scaled: Floats) -> bool:
    """Return True if columns of length 1 (n, d) are certainly independent, and False if a QR decomposition must decide.

    The Cholesky factor of the columns' Gram matrix has the same diagonal as R of the QR decomposition, with half as
    many correct digits. It takes a fraction of the time if there are many columns.
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
