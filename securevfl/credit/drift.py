"""Drift: tests whether new rows have the same distribution as the training rows, column by column.

    PSI    population stability index (Siddiqi 2006): sum over bins of (q - p) ln(q / p), with p and q the shares of
           training and new rows in a bin. By convention a column below 0.1 is stable, and above 0.25 it has shifted.
           Numbers have ten bins with equally many training rows, and one bin beyond either end. If a column has few
           distinct numbers, each of them is a bin, and so is each range between two. Each text is a bin. Half a row is
           added to each bin, so that no share is 0
    KS     Kolmogorov-Smirnov statistic: the largest difference of the two distribution functions
    p      probability of a difference at least as large by chance, if both distributions are equal. The test is that of
           Kolmogorov for numbers (with Stephens's correction for the sample size), chi-square for texts and few
           distinct numbers, and a normal test for the share of missing values

A column counts as shifted if p times the number of tests of all columns (Bonferroni) is below `alarms`. The baseline of
a column is a summary of its training rows. It is stored in the party's part of the model, the file with the weights of
the party's columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.credit.two_samples import (
    chi_square_p,
    kolmogorov_p,
    population_stability_index,
    share_difference_p,
)
from securevfl.data.baseline import Baseline, counts_at_points
from securevfl.data.columns import Columns
from securevfl.data.validation import name_list
from securevfl.errors import TableError

ALARMS = 0.01
"""Default probability of a false alarm: that at least one column counts as shifted although none has."""
PSI_BINS = 10
"""Number of bins with equally many training rows."""
MAX_DISTINCT = 20
"""Maximum number of distinct numbers of a column that are counted one by one; otherwise its rows are counted in
bins."""
MIN_NEW_ROWS = 50
"""Minimum number of new rows."""
STABLE, SHIFTED = 0.1, 0.25
"""Below the first value of PSI a column is called stable, above the second one it has shifted."""


@dataclass(frozen=True)
class Drift:
    """Comparison of one column of the new rows with the same column of the training rows.

    Attributes:
        column: the name of the column.
        psi: the population stability index.
        ks: the Kolmogorov-Smirnov statistic; None for texts.
        p: the smallest probability of the tests of the column.
        missing: the share of new rows without a value.
        was_missing: the share of training rows that have no value.
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
        alarms: probability that at least one column counts as shifted although none has.

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
        ks, p = None, chi_square_p(old_counts, new_counts)
    else:
        old_counts, new_counts, ks, p = _count_numbers(base, values[~missing])
    old_counts, new_counts = np.append(old_counts, base.missing), np.append(new_counts, missing.sum())
    p = min(p, share_difference_p(base.missing, base.rows, int(missing.sum()), m))
    return Drift(
        column=base.column,
        psi=population_stability_index(old_counts, new_counts),
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

    The two distribution functions are compared at the points of the baseline and just below each of them. With few
    distinct numbers, each number and each range between two of them is a bin, and p is that of chi-square.
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
        return old_counts, new_counts, ks, chi_square_p(old_counts, new_counts)
    edges = np.unique([*np.searchsorted(below, np.arange(1, PSI_BINS) * n / PSI_BINS), len(below) - 1])
    old_counts, new_counts = (
        _bin_counts(np.append(first, cumulative[edges]), rows)
        for first, cumulative, rows in ((under[0], below, n), (new_under[0], new_below, m))
    )
    return old_counts, new_counts, ks, kolmogorov_p(ks, n, m)


def _bin_counts(below: Floats, total: int) -> Floats:
    """Return how many of `total` rows are in each interval between points. `below` counts the rows up to each point."""
    return np.diff(np.concatenate([[0.0], below, [float(total)]]))
