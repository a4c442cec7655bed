"""Drift: tests whether new rows have the same distribution as the training rows, column by column.

    PSI    population stability index (Siddiqi 2006): sum over bins of (q - p) ln(q / p), with p and q the shares of
           training and new rows. By convention a column below 0.1 is stable, and above 0.25 it has shifted. The bins
           are tenths of the training rows and both ends beyond them; or a few distinct numbers and the ranges between
           them; or texts. Half a row is added to each bin
    KS     Kolmogorov-Smirnov statistic: the largest difference of the two distribution functions, at the points of the
           baseline and just below each of them
    p      probability of a difference at least as large if both distributions are equal: of KS for numbers
           (Kolmogorov, with Stephens's correction for the sample size), of chi-square for texts and few distinct
           numbers, and of a normal test for the share of missing values

A column counts as shifted if p times the number of tests of all columns (Bonferroni) is below `alarms`. With many rows
that detects shifts too small to matter; the PSI measures their size.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.data.baseline import Baseline, counts_at_points
from securevfl.data.columns import Columns
from securevfl.data.validation import name_list
from securevfl.errors import TableError

ALARMS = 0.01
"""Default probability of a false alarm: that at least one column counts as shifted although none has."""
PSI_BINS = 10
MAX_DISTINCT = 20
"""Maximum number of distinct numbers of a column that are counted one by one; otherwise its rows are counted in
bins."""
MIN_NEW_ROWS = 50
STABLE, SHIFTED = 0.1, 0.25
"""Below the first value of PSI a column is called stable, above the second one it has shifted."""


@dataclass(frozen=True)
class Drift:
    """Comparison of one column of new rows with the training.

    Attributes:
        column: the name of the column.
        psi: the population stability index.
        ks: the Kolmogorov-Smirnov statistic; None for texts.
        p: the smallest probability of the tests of the column.
        missing: the share of new rows without a value.
        was_missing: the share of training rows without a value.
        unseen: the share of new rows with a text that did not occur in training.
        shifted: whether the column counts as shifted.
    """

    column: str
    psi: float
    ks: float | None
    p: float
    missing: float
    was_missing: float
    unseen: float
    shifted: bool

    @property
    def size(self) -> str:
        """The size of the PSI as a word: "stable", "some" or "large"."""
        return "stable" if self.psi < STABLE else "some" if self.psi < SHIFTED else "large"


def measure_drift(baselines: Sequence[Baseline], new: Columns, *, alarms: float = ALARMS) -> list[Drift]:
    """Compare each column of new rows with its baseline.

    Args:
        baselines: summaries of the training columns.
        new: the new rows.
        alarms: probability of a false alarm over all columns.

    Returns:
        One comparison for each baseline.

    Raises:
        TableError: if there are no baselines, columns are missing, or there are fewer than MIN_NEW_ROWS rows.
    """
    if not baselines:
        raise TableError(
            "this part of the model has no summary of its training rows",
            "train again with this version of securevfl",
            code="SVFL-MODEL-UNSUPPORTED",
        )
    if len(new.X) < MIN_NEW_ROWS:
        raise TableError(
            f"{len(new.X)} new rows are too few to compare",
            f"bring at least {MIN_NEW_ROWS} rows",
            code="SVFL-TABLE-TOO-FEW-ROWS",
            rows=len(new.X),
        )
    absent = [base.column for base in baselines if base.column not in new.names]
    if absent:
        raise TableError(
            f"the new rows lack columns of the training: {name_list(absent)}",
            "add these columns",
            code="SVFL-TABLE-COLUMNS",
            columns=absent,
        )
    tests = 2 * len(baselines)
    return [_compare(base, new, new.names.index(base.column), alarms / tests) for base in baselines]


def _compare(base: Baseline, new: Columns, position: int, significance: float) -> Drift:
    values = new.X[:, position]
    missing, m = np.isnan(values), len(values)
    texts, unseen = new.categories.get(base.column, ()), 0
    if base.categories is not None:
        new_texts = [texts[category] for category in values[~missing].astype(np.intp).tolist()]
        old_counts, new_counts, unseen = _count_texts(base, new_texts)
        ks, p = None, _chi_square(old_counts, new_counts)
    else:
        old_counts, new_counts, ks, p = _count_numbers(base, values[~missing])
    old_counts, new_counts = np.append(old_counts, base.missing), np.append(new_counts, missing.sum())
    p = min(p, _share_test(base.missing, base.rows, int(missing.sum()), m))
    return Drift(
        column=base.column,
        psi=_psi(old_counts, new_counts),
        ks=ks,
        p=p,
        missing=float(missing.mean()),
        was_missing=base.missing / base.rows,
        unseen=0.0 if base.others else unseen / m,
        shifted=p < significance,
    )


def _count_texts(base: Baseline, texts: Sequence[str]) -> tuple[Floats, Floats, int]:
    """Return numbers of training rows and of new rows for each text, and how many new rows have an unknown text."""
    assert base.categories is not None, "the caller checks that the column holds texts"
    counts = Counter(texts)
    unseen = sum(count for text, count in counts.items() if text not in base.categories)
    old_counts = np.array([*base.categories.values(), base.others], np.float64)
    return old_counts, np.array([*(counts[text] for text in base.categories), unseen], np.float64), unseen


def _count_numbers(base: Baseline, present: Floats) -> tuple[Floats, Floats, float, float]:
    """Return numbers of training rows and of new rows in each bin, the KS statistic, and p.

    With few distinct numbers, each number and each range between two of them is a bin, and p is that of chi-square.
    """
    n, m = base.rows - base.missing, len(present)
    if not n or not m:
        return np.array([float(n)]), np.array([float(m)]), 0.0, 1.0
    below, (new_below, new_under) = np.asarray(base.below, np.float64), counts_at_points(present, base.points)
    under = np.asarray(base.under, np.float64)
    ks = float(max(np.abs(below / n - new_below / m).max(), np.abs(under / n - new_under / m).max()))
    if len(below) <= MAX_DISTINCT:
        old_counts = _bin_counts(np.sort(np.append(below, under)), n)
        new_counts = _bin_counts(np.sort(np.append(new_below, new_under)), m)
        return old_counts, new_counts, ks, _chi_square(old_counts, new_counts)
    edges = np.unique([*np.searchsorted(below, np.arange(1, PSI_BINS) * n / PSI_BINS), len(below) - 1])
    old_counts, new_counts = (
        _bin_counts(np.append(first, cumulative[edges]), rows)
        for first, cumulative, rows in ((under[0], below, n), (new_under[0], new_below, m))
    )
    return old_counts, new_counts, ks, _kolmogorov(ks, n, m)


def _bin_counts(below: Floats, total: int) -> Floats:
    """Return how many of `total` rows are between two points, from the number of rows at or below each point."""
    return np.diff(np.concatenate([[0.0], below, [float(total)]]))


def _psi(old_counts: Floats, new_counts: Floats) -> float:
    used = (old_counts > 0) | (new_counts > 0)
    old_counts, new_counts = old_counts[used] + 0.5, new_counts[used] + 0.5
    p, q = old_counts / old_counts.sum(), new_counts / new_counts.sum()
    return float(((q - p) * np.log(q / p)).sum())


def _kolmogorov(distance: float, n: int, m: int) -> float:
    """Return p of a KS statistic of n training rows and m new rows (Stephens 1970).

    An upper bound if values are tied.
    """
    root = math.sqrt(n * m / (n + m))
    reach = (root + 0.12 + 0.11 / root) * distance
    if reach < 0.2:
        return 1.0
    return min(1.0, max(0.0, 2 * sum((1 if k % 2 else -1) * math.exp(-2 * (k * reach) ** 2) for k in range(1, 101))))


def _chi_square(old_counts: Floats, new_counts: Floats) -> float:
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
    degrees = len(cells) - 1  # Wilson and Hilferty 1931: the cube root of chi-square is nearly normally distributed
    z = (math.cbrt(statistic / degrees) - (1 - 2 / (9 * degrees))) / math.sqrt(2 / (9 * degrees))
    return 0.5 * math.erfc(z / math.sqrt(2))


def _share_test(old_hits: int, n: int, new_hits: int, m: int) -> float:
    """Return p of the difference of two shares: `old_hits` of n training rows and `new_hits` of m new rows."""
    pooled = (old_hits + new_hits) / (n + m)
    if pooled in (0.0, 1.0):
        return 1.0
    if min(old_hits + new_hits, n + m - old_hits - new_hits) < 10:
        return 1.0
    z = abs(old_hits / n - new_hits / m) / math.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m))
    return math.erfc(z / math.sqrt(2))
