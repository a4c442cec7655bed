"""Monotone bins of a numeric column, from a party's labels: the share of the positive class only rises, or only falls.

Isotonic regression (scipy's pool-adjacent-violators) finds the monotone step function of highest likelihood. Each of
its steps is a bin. Then neighbouring bins are merged, each time the two whose merger lowers the log likelihood least,
until no bin has too few rows and there are not too many bins. The shares of merged bins are monotone, too. Missing
values and special codes (numbers with a meaning, such as -999) are left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.extras import import_extra
from securevfl.data.bin_edges import shortest_between


def monotone_edges(values: Floats, is_positive: NDArray[np.bool_], *, bins: int, min_rows: int) -> tuple[float, ...]:
    """Return the edges of bins whose shares rise, or of bins whose shares fall, whichever have the higher likelihood.

    Args:
        values: the values of the column (n,), without missing ones and special codes.
        is_positive: whether each row is of the positive class (n,).
        bins: the maximum number of bins.
        min_rows: the minimum number of rows of a bin.

    Returns:
        The edges in increasing order: between two values, the number with the fewest digits. Raises ConfigError if
        scipy is not installed.
    """
    optimize: Any = import_extra("scipy.optimize", "sklearn", "monotone bins")
    distinct, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    positives: Floats = np.bincount(inverse, weights=is_positive, minlength=len(distinct)).astype(np.float64)
    best, edges = -np.inf, tuple[float, ...]()
    for increasing in (True, False):
        blocks = optimize.isotonic_regression(positives / counts, weights=counts, increasing=increasing).blocks
        starts = _merge(np.asarray(blocks[:-1]), positives, counts, bins, min_rows)
        likelihood = sum(
            _log_likelihood(positives[start:end].sum(), counts[start:end].sum())
            for start, end in zip(starts, [*starts[1:], len(distinct)], strict=True)
        )
        if likelihood > best:
            best = likelihood
            edges = tuple(shortest_between(distinct[start - 1], distinct[start]) for start in starts[1:])
    return edges


def _merge(starts: NDArray[Any], positives: Floats, counts: NDArray[Any], bins: int, min_rows: int) -> list[int]:
    """Merge neighbouring blocks until at most `bins` remain and none has fewer than `min_rows` rows.

    Args:
        starts: the position of the first distinct value of each block.
        positives: the rows of the positive class of each distinct value.
        counts: the rows of each distinct value.
        bins: the maximum number of blocks.
        min_rows: the minimum number of rows of a block.

    Returns:
        The positions of the first values of the remaining blocks.
    """
    remaining = starts.tolist()
    p, n = np.add.reduceat(positives, starts).tolist(), np.add.reduceat(counts, starts).tolist()
    while len(remaining) > 1:
        small = {index for index, rows in enumerate(n) if rows < min_rows}
        if len(remaining) <= bins and not small:
            break
        pairs = [k for k in range(len(n) - 1) if not small or k in small or k + 1 in small]
        losses = [
            _log_likelihood(p[k], n[k])
            + _log_likelihood(p[k + 1], n[k + 1])
            - _log_likelihood(p[k] + p[k + 1], n[k] + n[k + 1])
            for k in pairs
        ]
        k = pairs[int(np.argmin(losses))]
        p[k : k + 2], n[k : k + 2] = [p[k] + p[k + 1]], [n[k] + n[k + 1]]
        del remaining[k + 1]
    return remaining


def _log_likelihood(positives: float, rows: float) -> float:
    """Return the log likelihood of the labels of a bin under the bin's share of positives."""
    parts = np.array([positives, rows - positives], np.float64)
    present = parts[parts > 0]
    return float((present * np.log(present / rows)).sum())
