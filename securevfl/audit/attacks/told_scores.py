"""What whoever asks for scores of new rows is told of them, in any family: f of rows that were not trained on.

The party that asks chooses what it brings. It may bring its columns as they are, or hold them constant: then scores
are the others' part of f up to a constant, as of a linear model, row by row.

Exact where a job tells scores as they are. On shares they are levels: rounded at random to a grid, as they are to
whoever keeps the bits of its share below a step too (`securevfl.protocols.shares.opened_scores`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from securevfl.audit.attacks.base import BY_COLUMN, Attack, By, Need, Score, always
from securevfl.audit.recording.views import Worlds
from securevfl.base.arrays import Floats
from securevfl.data.schedule import Rows
from securevfl.disclosure.exposure import NEARLY_ALL
from securevfl.job import Job
from securevfl.protocols.shares.quantizer import Levels

ROWS = 3000  # that are asked about at most


@dataclass(frozen=True)
class Asked:
    """Scores (m x c) of these rows as `learner` gets them, with its columns as they are and held constant.

    part (m x c): the others' part of f, up to a constant, as it is. own (m x d): its columns, empty if it has none.
    others: columns (m x d) of each other party, with their names.
    """

    learner: str
    rows: Rows
    scores: Floats
    constant: Floats
    part: Floats
    own: Floats
    others: dict[str, tuple[Floats, tuple[str, ...]]]


def asked(worlds: Worlds) -> Asked:
    """Rows that were held out, or if there are none, as good as new ones, scored by the finished model."""
    run, schedule = worlds.real_run[0], worlds.schedule
    rows = (schedule.test if len(schedule.test) else schedule.flow)[:ROWS]
    tables = {party.name: party.X[rows] for party in worlds.parties if party.columns}
    learner = run.active.asker
    scores = run.decision(tables)
    own = tables.get(learner, np.empty((len(rows), 0)))
    held = {learner: np.repeat(own.mean(axis=0, keepdims=True), len(rows), axis=0)} if learner in tables else {}
    constant = run.decision(tables | held) if held else scores
    columns = {party.name: tuple(party.columns) for party in worlds.parties}
    others = {name: (X, columns[name]) for name, X in tables.items() if name != learner}
    told, told_constant = (as_told(worlds.job, f, seed) for seed, f in enumerate((scores, constant)))
    return Asked(learner, rows, told, told_constant, constant, own, others)


def as_told(job: Job, f: Floats, seed: int) -> Floats:
    """Scores f (m x c) as the job tells them."""
    options = job.protocol.shares
    if options is None or options.scores == "exact":
        return f
    return rounded(f, options.score_levels(job.model.loss.spacing), seed)


def rounded(f: Floats, levels: Levels, seed: int) -> Floats:
    """Round sums f (any shape) at random to levels; those out of reach wrap."""
    at = np.floor(f / levels.size + np.random.default_rng([seed, 6]).random(f.shape))
    return levels.sums(at.astype(np.int64).view(np.uint64), rounded_down=0)


TOLD: Need = (
    lambda job: job.protocol.shares is None or job.protocol.shares.scores != "none",
    "no scores of new rows are told in this job",
)
SINGLE_OUT = "more columns, none with most of the weight; score fewer rows, under fewer models"


class ScoresAttack(Attack):
    """Whoever asks for scores, after what the others hold; an ideal attacker is told the same."""

    by = By.ASKER
    needs: ClassVar[tuple[Need, ...]] = (TOLD,)
    remedy = always(SINGLE_OUT)


# Columns from scores of new rows, with a few rows known (known samples; Turgay et al. 2008).
#
# A score f = X_A theta_A + X_B theta_B is one number about X_B for each output and each model. Whoever asks fits a
# column of B, on the rows that it knows, by its own columns and the scores, and reads it on all others: a single column
# from the first score, d columns from d outputs, in part a column that has most of the weight. Held constant, own
# columns leave X_B theta_B alone. The score is the share of the variance of one column, beyond what own columns say of
# it, that the scores add on the rows not known, where that is most.


KNOWN = 200  # rows at most, and half of those that are asked about


class ScoreColumns(ScoresAttack):
    name = "score_columns"
    paper = "Turgay et al. 2008, disclosure risks of distance preserving data transformations (known samples)"
    measures = "share of one column of another party that scores of new rows add to own columns, some rows known"
    beyond = NEARLY_ALL

    def score(self, worlds: Worlds) -> Score:
        told, best = asked(worlds), (0.0, "")
        known = max(1, min(KNOWN, len(told.rows) // 2))
        for how, scores in (("as they are", told.scores), ("held constant", told.constant)):
            for name, (X, columns) in told.others.items():
                shares = added(told.own, scores, X, known)
                at = int(np.argmax(shares))
                said = f"{told.learner} with {known} known rows and own columns {how}: {columns[at]} of {name}"
                best = max(best, (float(shares[at]), said))
        return Score(best[0], best[0], 0.0, best[1], noise=1.0 / known)


def added(own: Floats, scores: Floats, X: Floats, known: int) -> Floats:
    """Share (d,) of each column of X (m x d) that scores (m x c) add to own columns, on the rows beyond the known."""
    ones = np.ones((len(X), 1))
    without, with_scores = (_missed(np.hstack(design), X, known) for design in ((ones, own), (ones, own, scores)))
    share: Floats = np.zeros(X.shape[1])
    np.divide(without - with_scores, without, out=share, where=without > 1e-12)
    return share.clip(0.0, 1.0)


def _missed(design: Floats, X: Floats, known: int) -> Floats:
    """Return what a fit on the known rows leaves of each column's variance on the others (d,); at most all of it."""
    deviation = design.std(axis=0)
    scaled = np.where(deviation > 0, (design - design.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0), design)
    fit = np.linalg.lstsq(scaled[:known], X[:known])[0]
    rest = X[known:]
    missed = ((scaled[known:] @ fit - rest) ** 2).mean(axis=0)
    spread = np.maximum(rest.var(axis=0), 1e-300)
    return np.minimum(missed, ((rest - X[:known].mean(axis=0)) ** 2).mean(axis=0)) / spread


# Columns of two values from one score a row, without any known row: sums of few weights fall into clusters.
#
# Own columns held constant, the score of a row is a constant plus the weights of the others' columns that are 1. With d
# of these there are at most 2^d values of f, and the difference of two that differ in one column alone comes far more
# often than any other. So the attacker takes the differences that most pairs of clusters have as weights, but for those
# that are sums or differences of weights it has, until nearly all clusters are sums of them; then each row's columns
# are those whose weights add up to its score. Where columns that are no 0/1 lie over them, it splits the scores in two,
# in the middle and at the widest gap: a column with most of the weight shows there. The score is the share of another
# party's columns of two values that are read on 99 rows of 100.


Bits = NDArray[np.bool_]

CLOSE = 2.0**-15  # of two scores of one cluster: they have 16 fractional bits or more
MOST = 14  # columns that are looked for
READ = 0.99  # of the rows
SOME = 60  # clusters that a constant is found by
CANDIDATES = 300  # differences that are tried
GROWS = 1.5  # times as many scores are explained by a weight that is no sum of others


class ScoreBits(ScoresAttack):
    name = "score_bits"
    paper = "Coron and Gini 2020, a polynomial-time algorithm for the hidden subset sum problem, for one sum"
    measures = "share of a party's columns of two values that are read from scores of new rows, without a known row"
    beyond = 0.0
    needs = (TOLD, BY_COLUMN)

    def score(self, worlds: Worlds) -> Score:
        told, best = asked(worlds), (0.0, "")
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
        if mixed and more.explained < GROWS * fit.explained:
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


# The others' part of a score, from scores with own columns held constant: one number of what others hold, of each row.
#
# Whoever asks chooses its own columns. Held constant, f = X_A theta_A + X_B theta_B is X_B theta_B up to a constant,
# and what rounding leaves of it where scores are levels. No row need be known. What a sum of columns is worth is for
# its owner to say: it is the part of the model that its columns are there for, and a credit bureau sells just that.


class ScoreSums(ScoresAttack):
    name = "score_sums"
    paper = "outputs of a linear model as equations (Luo et al. 2021, feature inference attack on model predictions)"
    measures = "share of the variance of the others' part of f that is told by scores, own columns held constant"
    remedy = always(f"coarser scores (score_bits), or none; {SINGLE_OUT}")

    def score(self, worlds: Worlds) -> Score:
        told = asked(worlds)
        share = float(np.mean(list(map(explained, told.constant.T, told.part.T))))
        noise = 2 * float(np.sqrt(max(0.0, share * (1 - share)) / len(told.rows)))
        return Score(share, share, 0.0, f"{told.learner} asks about {len(told.rows)} rows", noise=noise)


def explained(told: Floats, part: Floats, *known: Floats) -> float:
    """Return the share of the variance of `part` (m,) that `told` (m,) adds to what is known (each m,), linearly."""
    ones = np.ones(len(part))
    designs = [np.column_stack([ones, *known, *more]) for more in ((), (told,))]
    left = [float(((design @ np.linalg.lstsq(design, part)[0] - part) ** 2).mean()) for design in designs]
    return min(1.0, max(0.0, (left[0] - left[1]) / max(float(part.var()), 1e-300)))  # rounding may pass either end
