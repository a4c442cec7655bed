"""Binary columns from one score for each row, without any known row: sums of few weights form clusters.

If the requester's columns are constant, the score of a row is a constant plus the weights of those columns of other
parties that are 1. With d binary columns there are at most 2^d values, around which scores form clusters. The
difference of two clusters that differ in one column occurs far more often than any other difference. The attacker takes
the most frequent differences of clusters as weights, except those that are sums or differences of weights that it
already has, until nearly all clusters are sums of weights. The columns of a row are then those whose weights add up to
its score. If columns that are not binary blur the clusters, the attacker splits the scores in two, in the middle and at
the widest gap; a column with most of the weight shows there. The score of the attack is the share of another party's
binary columns that are read correctly on 99 % of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from securevfl.audit.attacks.base import WEIGHT_PER_COLUMN, Bits, Score
from securevfl.audit.attacks.new_row_scores import SCORES_DISCLOSED, ScoresAttack, query_scores
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.base.arrays import Floats

CLUSTER_GAP = 2.0**-15
"""Maximum distance between neighbouring scores of one cluster; scores have at least 16 fractional bits."""

MAX_WEIGHTS = 14
"""Maximum number of columns to look for."""

READ_SHARE = 0.99
"""Minimum share of rows on which a column must be read correctly."""

MAX_BASE_CLUSTERS = 60
"""Number of clusters from which the constant is estimated."""

MAX_CANDIDATES = 300
"""Maximum number of differences to try."""

MIN_GAIN = 1.5
"""A weight that is a sum of other weights must increase the number of explained scores by this factor."""


class ScoreBits(ScoresAttack):
    """Reads binary columns of other parties from scores with constant columns."""

    name = "score_bits"
    paper = "Coron and Gini 2020, a polynomial-time algorithm for the hidden subset sum problem, for one sum"
    measures = "share of a party's binary columns that are read from scores of new rows, without a known row"
    leak_threshold = 0.0
    requirements = (SCORES_DISCLOSED, WEIGHT_PER_COLUMN)

    def score(self, pair: RealIdealPair) -> Score:
        """Return the share of another party's binary columns that are read, for the most exposed party."""
        queried, best = query_scores(pair), (0.0, "")
        candidates = [column for f in queried.constant_scores.T for column in split(f)]
        for name, (X, columns) in queried.other_columns.items():
            binary = [(label, x == x.max()) for label, x in zip(columns, X.T, strict=True) if len(np.unique(x)) == 2]
            named = [label for label, truth in binary if any(agree(truth, bits) >= READ_SHARE for bits in candidates)]
            if named:
                detail = (
                    f"{queried.requester} reads {len(named)} of {len(binary)} binary columns of {name}: "
                    f"{', '.join(named)}"
                )
                best = max(best, (len(named) / len(binary), detail))
        return Score(best[0], best[0], 0.0, best[1])


def agree(one: Bits, other: Bits) -> float:
    """Return the share of rows on which two binary columns agree, up to exchanging 0 and 1."""
    same = float((one == other).mean())
    return max(same, 1 - same)


def split(f: Floats) -> Iterator[Bits]:
    """Yield binary columns (m,) whose weighted sum the scores (m,) may be."""
    values, cluster = clusters(f)
    if 1 < len(values) <= len(f) // 2:
        bits = decoded(values)
        yield from bits[cluster].T
    ordered = np.sort(f)
    outliers = len(f) // 50  # these rows at both ends are ignored when the widest gap between scores is searched
    gaps = np.diff(ordered)[outliers : len(f) - outliers]
    if len(gaps):
        yield f > ordered[outliers + int(np.argmax(gaps))]
        yield f > (f[f > f.mean()].mean() + f[f <= f.mean()].mean()) / 2


def clusters(f: Floats) -> tuple[Floats, NDArray[np.intp]]:
    """Return the mean of each cluster of scores, ascending, and the index of each score's cluster (m,)."""
    order = np.argsort(f)
    number = np.concatenate([[0], np.cumsum(np.diff(f[order]) > CLUSTER_GAP)])
    means = np.bincount(number, f[order]) / np.bincount(number)
    cluster = np.empty(len(f), np.intp)
    cluster[order] = number
    return means, cluster


def decoded(values: Floats) -> Bits:
    """Find d weights whose sums are the k ascending values, up to a constant; return which are in each sum (k, d)."""
    fit = _fitted([], values)
    for candidate in frequent_differences(values):
        extended = _fitted([*fit.weights, candidate], values)
        signed = [sign * weight for weight in fit.weights for sign in (1, -1)]
        combined = any(  # whether the new difference is a sum or a difference of up to three weights found before
            abs(abs(sum(terms)) - candidate) < 4 * CLUSTER_GAP
            for count in (1, 2, 3)
            for terms in combinations(signed, count)
        )
        if combined and extended.explained < MIN_GAIN * fit.explained:
            continue
        fit = extended
        if len(fit.weights) == MAX_WEIGHTS or fit.explained >= READ_SHARE:
            break
    return _sums(len(fit.weights))[fit.order][_nearest(fit.totals, values - fit.base)[1]]


class _Fit(NamedTuple):
    """Weights that explain values as their sums.

    Attributes:
        weights: the weights.
        totals: all sums of weights, ascending.
        order: the order that sorts the sums.
        base: the constant that is added to each sum.
        explained: share of values that equal such a sum, up to rounding.
    """

    weights: list[float]
    totals: Floats
    order: NDArray[np.intp]
    base: float
    explained: float


def _fitted(weights: list[float], values: Floats) -> _Fit:
    """Choose the constant with which most values are sums of these weights, and return the weights with it."""
    totals = _sums(len(weights)) @ np.array(weights)
    order = np.argsort(totals)
    sample = values[:: max(1, len(values) // MAX_BASE_CLUSTERS)]
    differences = np.sort((sample[:, None] - totals).ravel())  # the most frequent of these is the constant
    end = np.searchsorted(differences, differences + 2 * CLUSTER_GAP, side="right")
    first = int(np.argmax(end - np.arange(len(differences))))
    base = float(differences[first : end[first]].mean())
    explained = float((_nearest(totals[order], values - base)[0] < 4 * CLUSTER_GAP).mean())
    return _Fit(weights, totals[order], order, base, explained)


def _sums(count: int) -> Bits:
    """Return all subsets (2^count, count) of `count` weights."""
    return (np.arange(2**count)[:, None] >> np.arange(count) & 1).astype(bool)


def frequent_differences(values: Floats) -> Iterator[float]:
    """Yield the differences of two values, the most frequent ones first."""
    differences = np.sort((values[None] - values[:, None])[np.triu_indices(len(values), 1)])
    end = np.searchsorted(differences, differences + 2 * CLUSTER_GAP, side="right")
    count = end - np.arange(len(differences))
    for _ in range(MAX_CANDIDATES):
        first = int(np.argmax(count))
        if count[first] < 1:
            return
        yield float(differences[first : end[first]].mean())
        count[np.searchsorted(differences, differences[first] - 2 * CLUSTER_GAP) : end[first]] = 0


def _nearest(sums: Floats, values: Floats) -> tuple[Floats, NDArray[np.intp]]:
    """Return the distance of each value from the nearest of the ascending sums, and the index of that sum."""
    above = np.searchsorted(sums, values).clip(1, len(sums) - 1) if len(sums) > 1 else np.zeros(len(values), np.intp)
    nearer = np.where(np.abs(values - sums[above - 1]) < np.abs(values - sums[above]), above - 1, above)
    return np.abs(values - sums[nearer]), nearer
