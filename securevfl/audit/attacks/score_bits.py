"""Columns of two values from one score a row, without any known row: sums of few weights fall into clusters.

Own columns held constant, the score of a row is a constant plus the weights of the others' columns that are 1. With d
of these there are at most 2^d values of f, and the difference of two that differ in one column alone comes far more
often than any other. So the attacker takes the differences that most pairs of clusters have as weights, but for those
that are sums or differences of weights it has, until nearly all clusters are sums of them; then each row's columns
are those whose weights add up to its score. Where columns that are no 0/1 lie over them, it splits the scores in two,
in the middle and at the widest gap: a column with most of the weight shows there. The score is the share of another
party's columns of two values that are read on 99 rows of 100.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from securevfl.audit.attacks.base import WEIGHT_PER_COLUMN, Score
from securevfl.audit.attacks.new_row_scores import SCORES_DISCLOSED, ScoresAttack, query_scores
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.base.arrays import Floats

Bits = NDArray[np.bool_]

CLOSE = 2.0**-15  # of two scores of one cluster: they have 16 fractional bits or more

MOST = 14  # columns that are looked for

READ = 0.99  # of the rows

SOME = 60  # clusters that a constant is found by

CANDIDATES = 300  # differences that are tried

MIN_GROWING_ROWS = 1.5  # times as many scores are explained by a weight that is no sum of others


class ScoreBits(ScoresAttack):
    name = "score_bits"
    paper = "Coron and Gini 2020, a polynomial-time algorithm for the hidden subset sum problem, for one sum"
    measures = "share of a party's columns of two values that are read from scores of new rows, without a known row"
    leak_threshold = 0.0
    requirements = (SCORES_DISCLOSED, WEIGHT_PER_COLUMN)

    def score(self, pair: RealIdealPair) -> Score:
        told, best = query_scores(pair), (0.0, "")
        bits = [column for f in told.constant.T for column in split(f)]
        for name, (X, columns) in told.others.items():
            two = [(label, x == x.max()) for label, x in zip(columns, X.T, strict=True) if len(np.unique(x)) == 2]
            named = [label for label, truth in two if any(agree(truth, each) >= READ for each in bits)]
            if named:
                said = f"{told.learner} reads {len(named)} of {len(two)} columns of {name}: {', '.join(named)}"
                best = max(best, (len(named) / len(two), said))
        return Score(best[0], best[0], 0.0, best[1])


def agree(one: Bits, other: Bits) -> float:
    """Return the share of rows on which two columns agree, 0 and 1 in either order."""
    same = float((one == other).mean())
    return max(same, 1 - same)


def split(f: Floats) -> Iterator[Bits]:
    """Columns (m,) of 0 and 1 that scores (m,) of rows may be made of."""
    values, place = clusters(f)
    if 1 < len(values) <= len(f) // 2:
        bits = decoded(values)
        yield from bits[place].T
    ordered = np.sort(f)
    at = len(f) // 50  # the widest gap between rows that are no outliers
    gaps = np.diff(ordered)[at : len(f) - at]
    if len(gaps):
        yield f > ordered[at + int(np.argmax(gaps))]
        yield f > (f[f > f.mean()].mean() + f[f <= f.mean()].mean()) / 2


def clusters(f: Floats) -> tuple[Floats, NDArray[np.intp]]:
    """Find the mean of each run of scores that follow closely, ascending, and which run each score is in (m,)."""
    order = np.argsort(f)
    number = np.concatenate([[0], np.cumsum(np.diff(f[order]) > CLOSE)])
    means = np.bincount(number, f[order]) / np.bincount(number)
    place = np.empty(len(f), np.intp)
    place[order] = number
    return means, place


def decoded(values: Floats) -> Bits:
    """Which weights (k, d) each of these values (k,), ascending, is a sum of, up to a constant."""
    fit = _fitted([], values)
    for candidate in often(values):
        more = _fitted([*fit.weights, candidate], values)
        signed = [sign * weight for weight in fit.weights for sign in (1, -1)]
        mixed = any(  # with a sum or a difference of up to three weights
            abs(abs(sum(some)) - candidate) < 4 * CLOSE for count in (1, 2, 3) for some in combinations(signed, count)
        )
        if mixed and more.explained < MIN_GROWING_ROWS * fit.explained:
            continue
        fit = more
        if len(fit.weights) == MOST or fit.explained >= READ:
            break
    return _sums(len(fit.weights))[fit.order][_off(fit.totals, values - fit.base)[1]]


class _Fit(NamedTuple):
    """Weights, their sums ascending with the order that makes them so, a constant, and the share of values that are
    such sums."""

    weights: list[float]
    totals: Floats
    order: NDArray[np.intp]
    base: float
    explained: float


def _fitted(weights: list[float], values: Floats) -> _Fit:
    """Return the weights with the constant by which most of some of the values are sums of them."""
    totals = _sums(len(weights)) @ np.array(weights)
    order = np.argsort(totals)
    some = values[:: max(1, len(values) // SOME)]
    apart = np.sort((some[:, None] - totals).ravel())  # the base is where most of these lie closely together
    last = np.searchsorted(apart, apart + 2 * CLOSE, side="right")
    first = int(np.argmax(last - np.arange(len(apart))))
    base = float(apart[first : last[first]].mean())
    explained = float((_off(totals[order], values - base)[0] < 4 * CLOSE).mean())
    return _Fit(weights, totals[order], order, base, explained)


def _sums(count: int) -> Bits:
    """Every way (2^count, count) to take some of so many."""
    return (np.arange(2**count)[:, None] >> np.arange(count) & 1).astype(bool)


def often(values: Floats) -> Iterator[float]:
    """Differences of two of these values, those that most pairs have first."""
    apart = np.sort((values[None] - values[:, None])[np.triu_indices(len(values), 1)])
    last = np.searchsorted(apart, apart + 2 * CLOSE, side="right")
    count = last - np.arange(len(apart))
    for _ in range(CANDIDATES):
        first = int(np.argmax(count))
        if count[first] < 1:
            return
        yield float(apart[first : last[first]].mean())
        count[np.searchsorted(apart, apart[first] - 2 * CLOSE) : last[first]] = 0


def _off(sums: Floats, values: Floats) -> tuple[Floats, NDArray[np.intp]]:
    """How far each value is from the nearest of the sums, which ascend, and which one that is."""
    above = np.searchsorted(sums, values).clip(1, len(sums) - 1) if len(sums) > 1 else np.zeros(len(values), np.intp)
    nearer = np.where(np.abs(values - sums[above - 1]) < np.abs(values - sums[above]), above - 1, above)
    return np.abs(values - sums[nearer]), nearer
