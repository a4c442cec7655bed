"""How many numbers a row are enough to find the columns of a table, judged by whoever has the table.

Whoever collects a sum sees X_b theta_t for unknown weights that move: t = 1 ... T, each in double precision. From
T c >= rank(X_b) on these span the columns, and known rows, or columns of two values, name them. Two things make fewer
numbers enough, and both depend on what is in the table:

*Columns that go together.* The largest principal components come first, as gradients point along them. So many numbers
as components that hold NEARLY_ALL of the variance of the columns show nearly all of them.

*Columns of few values.* Every number has BITS bits. If all columns are 0/1, integers u with u . h = 0 for all h that
were received are short only if u is orthogonal to every column; lattice reduction (LLL) finds them, and with them the
space of the columns: the hidden subset sum problem (Nguyen and Stern 1999; Coron and Gini 2020). Measured with LLL in
double precision: the space of 14 columns of 0/1 from one number a row, of 24 from two; of 8 columns of 64 values from
two, of 4,096 values from four; of 8 columns of 0/1 and one of reals from two. So a column whose values lie on a grid of
V places counts as (log2 V + 1) / BITS of a number, 1/25 for 0/1, and one that others determine, as in one-hot groups,
as nothing.

No column counts as more than HALF a number. The weights follow from X and from residuals that the active party knows,
so what it sees are products of X X^T with known vectors, and these have far fewer unknowns than X theta_t.
"""

from __future__ import annotations

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.disclosure.information_content import EQUAL_VALUES

NEARLY_ALL = 0.9
MAX_NUMBERS_PER_COLUMN = 0.5
BITS_PER_NUMBER = 50
CLEARLY_INDEPENDENT = 1e-4  # from the span of others, for a column of length 1: beyond doubt in products of doubles
MAX_GRID_ERROR = 1e-3  # of a step: how far off its place a value may be
MAX_SAMPLE_ROWS = 4096  # of a table that are looked at


def numbers_for_recovery(X: Floats) -> float:
    """Numbers a row that are enough to find the columns of X (n x d, some rows of a table, scaled or not)."""
    by_value = sum(_numbers(column) for column in _independent(X).T)
    components = int((np.cumsum(_variances(X)) < NEARLY_ALL - 1e-12).sum()) + 1
    return min(by_value, MAX_NUMBERS_PER_COLUMN * len(X), float(components)) if by_value else np.inf


def variance_share(X: Floats, numbers: int) -> float:
    """Return the largest share of the variance of the columns of X (n x d) that this many numbers a row can hold."""
    return float(min(1.0, _variances(X)[:numbers].sum()))


def _numbers(column: Floats) -> float:
    """Return how many numbers one column counts as: by the grid on which its values lie, or as a column of 0/1 for each
    value but one.

    Values that miss their places by a share e of a step leave log2(1 / e) bits of a number.
    """
    values = np.unique(column)
    reach, steps = values[-1] - values[0], np.diff(values)
    steps = steps[steps > EQUAL_VALUES * reach]
    places = (values - values[0]) / steps.min()
    missed = float(np.abs(places - np.rint(places)).max())
    bits = min(BITS_PER_NUMBER, -np.log2(max(missed, 2.0**-BITS_PER_NUMBER)))
    on_grid = (np.log2(places[-1] + 1) + 1) / bits if missed < MAX_GRID_ERROR else MAX_NUMBERS_PER_COLUMN
    return float(min(MAX_NUMBERS_PER_COLUMN, on_grid, 2 * len(steps) / BITS_PER_NUMBER))


def _independent(X: Floats) -> Floats:
    """Columns that vary and that, with the constant 1, do not determine each other; those of few values first."""
    values = np.array([len(np.unique(column)) for column in X.T])
    own = X[:, np.argsort(values, kind="stable")]
    scaled = _standardised(own)
    if _all_new(scaled):
        return own
    new = np.abs(np.diag(np.linalg.qr(scaled, mode="r"))) > EQUAL_VALUES
    return own[:, : len(new)][:, new]


def _all_new(scaled: Floats) -> bool:
    """Whether columns of length 1 are so far from determining each other that their products alone show it.

    The diagonal of the Cholesky factor is that of R in the QR decomposition, in half the digits; it takes a fraction of
    the time where there are many columns. False leaves it to QR.
    """
    n, d = scaled.shape
    if d >= n:
        return False
    try:
        factor = np.linalg.cholesky(scaled.T @ scaled)
    except np.linalg.LinAlgError:
        return False
    return bool((np.diag(factor) > CLEARLY_INDEPENDENT).all())


def _standardised(X: Floats) -> Floats:
    """Centre the columns and scale them to length 1; those that do not vary become zero."""
    centred = X - X.mean(axis=0)
    lengths = np.linalg.norm(centred, axis=0)
    vary = lengths > EQUAL_VALUES * np.linalg.norm(X, axis=0)
    return np.where(vary, centred, 0.0) / np.where(vary, lengths, 1.0)


def _variances(X: Floats) -> Floats:
    """Shares of the variance of the standardised columns along the principal components, largest first."""
    scaled = _standardised(X)
    products = scaled.T @ scaled if X.shape[1] <= X.shape[0] else scaled @ scaled.T
    squares = np.maximum(np.linalg.eigvalsh(products)[::-1], 0.0)  # those of the singular values
    return squares / max(1.0, squares.sum())
