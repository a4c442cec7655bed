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
two, of 4,096 values from four; of 8 columns of 0/1 and one of reals from two. So a column of V values counts as
(log2 V + 2) / BITS of a number, which is about 1/16 for 0/1.

No column counts as more than HALF a number. The weights follow from X and from residuals that the active party knows,
so what it sees are products of X X^T with known vectors, and these have far fewer unknowns than X theta_t.
"""

from __future__ import annotations

import numpy as np

from securevfl.crypto.scheme import Floats

NEARLY_ALL = 0.9
HALF = 0.5
BITS = 50
ROWS = 4096  # of a table that are looked at


def enough(X: Floats) -> float:
    """Numbers a row that are enough to find the columns of X (n x d, some rows of a table, scaled or not)."""
    by_value = sum(_numbers(column) for column in X.T)
    components = int((np.cumsum(_variances(X)) < NEARLY_ALL - 1e-12).sum()) + 1
    return min(by_value, HALF * len(X), float(components)) if by_value else np.inf


def held(X: Floats, numbers: int) -> float:
    """The largest share of the variance of the columns of X (n x d) that so many numbers a row can hold."""
    return float(min(1.0, _variances(X)[:numbers].sum()))


def _numbers(column: Floats) -> float:
    values = len(np.unique(column))
    if values == len(column):
        return HALF
    return min(HALF, (np.log2(values) + 2) / BITS) if values > 1 else 0.0


def _variances(X: Floats) -> Floats:
    """Shares of the variance of the standardised columns along the principal components, largest first."""
    centred = X - X.mean(axis=0)
    lengths = np.linalg.norm(centred, axis=0)
    varying = centred[:, lengths > 0] / lengths[lengths > 0]
    squares = np.linalg.svd(varying, compute_uv=False) ** 2
    shares: Floats = squares / max(1.0, squares.sum())
    return shares
