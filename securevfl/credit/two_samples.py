"""Tests whether two samples have the same distribution, from counts alone.

Each function but the first returns p, the probability of a difference at least as large if both samples have the same
distribution. They are approximations for large samples; tests compare them with scipy, which the package does not
require.
"""

from __future__ import annotations

import math

import numpy as np

from securevfl.base.arrays import Floats


def population_stability_index(old_counts: Floats, new_counts: Floats) -> float:
    """Return the population stability index of two tables of counts (m,): sum of (q - p) log(q / p) over the cells.

    p and q are the shares of a cell in the old and the new rows; half a row is added to each count, so that no share
    is zero.
    """
    used = (old_counts > 0) | (new_counts > 0)
    old_counts, new_counts = old_counts[used] + 0.5, new_counts[used] + 0.5
    p, q = old_counts / old_counts.sum(), new_counts / new_counts.sum()
    return float(((q - p) * np.log(q / p)).sum())


def kolmogorov_p(distance: float, n: int, m: int) -> float:
    """Return p of a Kolmogorov-Smirnov statistic `distance` of samples of n and m rows (Stephens 1970).

    If values occur several times, the result is an upper bound of p.
    """
    root = math.sqrt(n * m / (n + m))
    reach = (root + 0.12 + 0.11 / root) * distance
    if reach < 0.2:
        return 1.0
    return min(1.0, max(0.0, 2 * sum((1 if k % 2 else -1) * math.exp(-2 * (k * reach) ** 2) for k in range(1, 101))))


def chi_square_p(old_counts: Floats, new_counts: Floats) -> float:
    """Return p of the chi-square test of two tables of counts; cells with few expected rows are merged."""
    both, share = old_counts + new_counts, old_counts.sum() / (old_counts.sum() + new_counts.sum())
    rare = both * min(share, 1 - share) < 5
    cells = [(float(a), float(b)) for a, b in zip(old_counts[~rare], new_counts[~rare], strict=True)]
    if rare.any() and both[rare].sum():
        cells.append((float(old_counts[rare].sum()), float(new_counts[rare].sum())))
    if len(cells) < 2:
        return 1.0
    a, b = np.array(cells).T
    expected = (a + b) * share
    statistic = float(((a - expected) ** 2 / expected + (b - (a + b - expected)) ** 2 / (a + b - expected)).sum())
    # Wilson and Hilferty 1931: the cube root of chi-square divided by its degrees of freedom is nearly normal
    degrees = len(cells) - 1
    z = (math.cbrt(statistic / degrees) - (1 - 2 / (9 * degrees))) / math.sqrt(2 / (9 * degrees))
    return 0.5 * math.erfc(z / math.sqrt(2))


def share_difference_p(old_hits: int, n: int, new_hits: int, m: int) -> float:
    """Return p of the difference between two shares, `old_hits` of n rows and `new_hits` of m rows (normal test)."""
    pooled = (old_hits + new_hits) / (n + m)
    if pooled in (0.0, 1.0):
        return 1.0
    if min(old_hits + new_hits, n + m - old_hits - new_hits) < 10:
        return 1.0
    z = abs(old_hits / n - new_hits / m) / math.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m))
    return math.erfc(z / math.sqrt(2))
