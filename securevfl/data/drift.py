"""Whether new rows still look like those of the training: each of a party's own columns held against its baseline.

    PSI    sum over bins of (q - p) ln(q / p), p and q the shares of training and new rows (population stability index;
           Siddiqi 2006); by custom below .1 is stable, above .25 has shifted. Bins are tenths of the training rows with
           both ends beyond these, or few different numbers and what lies between them, or texts, with half a row added
           to each
    KS     the largest distance of the two distributions, at the points that the baseline keeps and just below each
    p      the chance of as much difference, or more, between rows of one kind: of KS for numbers (Kolmogorov, with
           Stephens's correction for size), of chi-square for texts and few different numbers, of a normal for how many
           are missing

A column counts as shifted where p, times the number of looks at all columns (Bonferroni), is below `alarms`. With many
rows that finds shifts too small to matter: PSI says how large they are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.data.baseline import Baseline, counted
from securevfl.data.columns import Columns
from securevfl.errors import TableError

ALARMS = 0.01  # the chance that any column counts as shifted when none has
BINS = 10
FEW = 20  # different numbers that are counted one by one
FEWEST = 50  # new rows
STABLE, SHIFTED = 0.1, 0.25


@dataclass(frozen=True)
class Drift:
    """One column of new rows against the training. ks is None for texts; missing, was_missing and unseen are shares."""

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
        """The word for the size of the population stability index (PSI): stable, some or large."""
        return "stable" if self.psi < STABLE else "some" if self.psi < SHIFTED else "large"


def drifts(kept: Sequence[Baseline], new: Columns, *, alarms: float = ALARMS) -> list[Drift]:
    """One of each column of the baseline. TableError if the baseline is empty, columns are missing, or rows are few."""
    if not kept:
        raise TableError(
            "a part of the model that keeps what its training rows looked like was expected, this one is of an earlier "
            "version; train again"
        )
    if len(new.X) < FEWEST:
        raise TableError(f"{FEWEST} or more new rows were expected to compare, {len(new.X)} came; bring more at a time")
    lacking = [each.column for each in kept if each.column not in new.names]
    if lacking:
        raise TableError(f"the columns of the training were expected, missing: {', '.join(lacking[:5])}; bring them")
    looks = 2 * len(kept)
    return [_drift(each, new, new.names.index(each.column), alarms / looks) for each in kept]


def _drift(base: Baseline, new: Columns, at: int, level: float) -> Drift:
    values = new.X[:, at]
    lacks, m = np.isnan(values), len(values)
    texts, unseen = new.levels.get(base.column, ()), 0
    if base.levels is not None:
        own, other, unseen = _by_text(base, [texts[place] for place in values[~lacks].astype(np.intp).tolist()])
        ks, p = None, _chi_square(own, other)
    else:
        own, other, ks, p = _by_number(base, values[~lacks])
    own, other = np.append(own, base.missing), np.append(other, lacks.sum())
    p = min(p, _shares(base.missing, base.rows, int(lacks.sum()), m))
    return Drift(
        column=base.column,
        psi=_psi(own, other),
        ks=ks,
        p=p,
        missing=float(lacks.mean()),
        was_missing=base.missing / base.rows,
        unseen=0.0 if base.others else unseen / m,
        shifted=p < level,
    )


def _by_text(base: Baseline, texts: Sequence[str]) -> tuple[Floats, Floats, int]:
    """Rows of the training and new ones by text, the uncommon ones together last, which the third counts."""
    assert base.levels is not None, "it has been asked"
    found = Counter(texts)
    unseen = sum(count for text, count in found.items() if text not in base.levels)
    own = np.array([*base.levels.values(), base.others], np.float64)
    return own, np.array([*(found[text] for text in base.levels), unseen], np.float64), unseen


def _by_number(base: Baseline, present: Floats) -> tuple[Floats, Floats, float, float]:
    """Rows of the training and new ones in tenths of the training's and beyond its ends, KS, and its p: of few values,
    and what lies between them, chi-square's."""
    n, m = base.rows - base.missing, len(present)
    if not n or not m:
        return np.array([float(n)]), np.array([float(m)]), 0.0, 1.0
    below, (ranks, lower) = np.asarray(base.below, np.float64), counted(present, base.points)
    under = np.asarray(base.under, np.float64) if base.under else np.zeros(1)  # nothing lies below the first point
    lower = lower[: len(under)]
    ks = float(max(np.abs(below / n - ranks / m).max(), np.abs(under / n - lower / m).max()))
    if len(below) <= FEW:
        own, other = _parts(np.sort(np.append(below, under)), n), _parts(np.sort(np.append(ranks, lower)), m)
        return own, other, ks, _chi_square(own, other)
    edges = np.unique([*np.searchsorted(below, np.arange(1, BINS) * n / BINS), len(below) - 1])
    own, other = (
        _parts(np.append(first, at[edges]), rows) for first, at, rows in ((under[0], below, n), (lower[0], ranks, m))
    )
    return own, other, ks, _kolmogorov(ks, n, m)


def _parts(below: Floats, total: int) -> Floats:
    """How many of `total` rows lie between points, from how many are at most each."""
    return np.diff(np.concatenate([[0.0], below, [float(total)]]))


def _psi(own: Floats, other: Floats) -> float:
    used = (own > 0) | (other > 0)
    own, other = own[used] + 0.5, other[used] + 0.5
    p, q = own / own.sum(), other / other.sum()
    return float(((q - p) * np.log(q / p)).sum())


def _kolmogorov(distance: float, n: int, m: int) -> float:
    """P of a KS distance as large between n and m rows of one kind (Stephens 1970); an upper bound where values tie."""
    root = math.sqrt(n * m / (n + m))
    reach = (root + 0.12 + 0.11 / root) * distance
    if reach < 0.2:
        return 1.0
    return min(1.0, max(0.0, 2 * sum((1 if k % 2 else -1) * math.exp(-2 * (k * reach) ** 2) for k in range(1, 101))))


def _chi_square(own: Floats, other: Floats) -> float:
    """P of counts as different between two tables of one kind; cells where few rows are expected are put together."""
    both, share = own + other, own.sum() / (own.sum() + other.sum())
    rare = both * min(share, 1 - share) < 5
    cells = [(float(a), float(b)) for a, b in zip(own[~rare], other[~rare], strict=True)]
    if rare.any() and both[rare].sum():
        cells.append((float(own[rare].sum()), float(other[rare].sum())))
    if len(cells) < 2:
        return 1.0
    a, b = np.array(cells).T
    expected = (a + b) * share
    square = float(((a - expected) ** 2 / expected + (b - (a + b - expected)) ** 2 / (a + b - expected)).sum())
    free = len(cells) - 1  # Wilson and Hilferty 1931: the cube root is nearly normal
    z = (math.cbrt(square / free) - (1 - 2 / (9 * free))) / math.sqrt(2 / (9 * free))
    return 0.5 * math.erfc(z / math.sqrt(2))


def _shares(few: int, n: int, others: int, m: int) -> float:
    """P of two shares as different, of n and m rows of one kind."""
    pooled = (few + others) / (n + m)
    if pooled in (0.0, 1.0):
        return 1.0
    if min(few + others, n + m - few - others) < 10:
        return 1.0
    z = abs(few / n - others / m) / math.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m))
    return math.erfc(z / math.sqrt(2))
