"""What the party with labels is told of held-out rows on shares: (level, label) pairs in a hidden order.

The attacker is given its own part of f exactly, which its random share of its weights does not tell it: what an attack
finds here bounds what one finds without.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from securevfl.audit.attacks.base import BY_COLUMN, Attack, Need, Score, always
from securevfl.audit.attacks.told_scores import explained, rounded
from securevfl.audit.recording.views import Worlds
from securevfl.base.arrays import Floats
from securevfl.data.schedule import Rows
from securevfl.families.shares.shares_plan import on_shares, plan
from securevfl.models import pair_metrics
from securevfl.protocols.score_ledger.limits import ROWS_PER_MEASURE
from securevfl.protocols.shares.opened_loss import MOST
from securevfl.protocols.shares.quantizer import Levels

Marks = NDArray[np.bool_]


@dataclass(frozen=True)
class EvaluatedRows:
    """Rows that are evaluated: sums f (m x c), less targets where labels are numbers, and the attacker's own part of
    that (m x c).

    label (m x c): what goes with each level. levels: those that are told.
    """

    f: Floats
    own: Floats
    label: Marks
    levels: Levels

    def told(self, seed: int) -> Floats:
        """Return the level (m x c) of each row in one evaluation, in the rows' own order, which the attacker does not
        see."""
        return rounded(self.f, self.levels, seed)

    @property
    def parts(self) -> Floats:
        """The others' part (m x c)."""
        return self.f - self.own


MEASURED: tuple[Need, ...] = (
    (lambda job: job.protocol.shares is not None, "no pairs of a level and a label are told but on shares"),
    (lambda job: pair_metrics.fits(job.model.loss), "one sum of losses is told, and no pairs"),
    BY_COLUMN,
)


class PairsAttack(Attack):
    """The party with labels after the scores of held-out rows, by pairs (level, label) in a hidden order."""

    beyond = 0.1
    needs = MEASURED


def measured(worlds: Worlds) -> tuple[EvaluatedRows, EvaluatedRows]:
    """Return the rows that are evaluated, as far as there is room, and others that were not: those trained on."""
    schedule = worlds.schedule
    held = schedule.test if len(schedule.test) else schedule.flow
    return _of(worlds, held[:MOST]), _of(worlds, schedule.flow)


def _of(worlds: Worlds, rows: Rows) -> EvaluatedRows:
    run, job = worlds.real_run[0], worlds.job
    lead, loss, schedule = run.active, job.model.loss, worlds.schedule
    tables = {party.name: party.X[rows] for party in worlds.parties if party.columns}
    held = {
        name: X if name == lead.name else np.repeat(X.mean(axis=0, keepdims=True), len(X), axis=0)
        for name, X in tables.items()
    }
    f, own = run.decision(tables), run.decision(held)
    targets = loss.targets(worlds.active.labels[rows], lead.label_classes)
    label = targets > 0 if loss.classifies else np.zeros(f.shape, bool)
    less = 0.0 if loss.classifies else targets
    assert on_shares(job), "pairs are told on shares"
    most = max(len(part) for part in schedule.partition(0))
    numbers = plan(job, rows=most, batches=schedule.batches, parties=len(run.parts)).numbers
    return EvaluatedRows(
        f - less, own - less, label, job.protocol.shares.metrics_levels(numbers, classifies=loss.classifies)
    )


# Scores of held-out rows from the levels of all of them: the row with the largest own part takes the largest level.
#
# The party with labels is told which levels the rows of each label have, in a hidden order. It knows each row's label
# and at best its own part, so within a label it sorts both and takes them in turn. What the levels of these rows add to
# those of other rows, which say how own parts go with scores as well, is what an evaluation tells of single rows.


class RankMatching(PairsAttack):
    name = "rank_matching"
    paper = "rank matching of sorted values (after Naveed, Kamara and Wright 2015, sorting attack)"
    measures = "share of the variance of the others' part of f that levels of these rows add; chance: of other rows"
    remedy = always("hold out more rows (test_fraction)")

    def score(self, worlds: Worlds) -> Score:
        own, other = measured(worlds)
        share, by_others = (gained(own, each, worlds.seed) for each in (own, other))
        return Score(share, share, by_others, f"{len(own.f)} rows", noise=1 / len(own.f) ** 0.5)


def gained(rows: EvaluatedRows, levels_of: EvaluatedRows, seed: int) -> float:
    """Return what the levels of some rows add of the others' part, of the outputs in the mean."""
    guess = matched(rows.own, rows.label, levels_of.told(seed), levels_of.label)
    by_output = zip(guess.T, rows.parts.T, rows.own.T, rows.label.T.astype(float), strict=True)
    return float(np.mean([explained(*output) for output in by_output]))


def matched(own: Floats, label: Marks, told: Floats, beside: Marks) -> Floats:
    """Return a level for each row and output (m x c), by own parts and labels; told (k x c): levels, beside: their
    labels."""
    guess = np.zeros_like(own)
    for k in range(own.shape[1]):
        for sort in (False, True):
            rows, levels = np.flatnonzero(label[:, k] == sort), np.sort(told[beside[:, k] == sort, k])
            if len(rows) and len(levels):
                place = np.argsort(np.argsort(own[rows, k], kind="stable"), kind="stable")
                guess[rows, k] = levels[(place * len(levels)) // len(rows)]
    return guess


# Scores of held-out rows by a party with labels that deviates: it marks rows by the label that it puts beside them.
#
# The bit beside a level is what the party chooses. In each evaluation it marks another random half of the rows, sees
# how many rows of each half are at each level, and weighs for each row the levels by how many of the rows marked as it
# was lie there (naive Bayes). It may also move rows by what it adds to its own share: levels reach further than scores
# do, so the range has room for some more windows, each with one row alone, which it reads for certain.
#
# Nothing keeps it from either, and authenticated labels would not. The other party's ledger bounds it: the same rows
# are evaluated once for each ROWS_PER_MEASURE of them, over all runs.


class MarkedPairs(PairsAttack):
    name = "marked_pairs"
    paper = "tracker attack on counts (Denning, Denning and Schwartz 1979), by a party that deviates"
    measures = "share of the variance of the others' part of f that marked evaluations add, as many as a ledger allows"
    remedy = always("let rows be measured fewer times; a smaller metrics_range leaves room for fewer single rows")

    def score(self, worlds: Worlds) -> Score:
        rows, _ = measured(worlds)
        times = max(1, len(rows.f) // ROWS_PER_MEASURE)
        rng = np.random.default_rng([worlds.seed, 9])
        share, chance = (told_of(rows, times, rng, marks=marks) for marks in (True, False))
        said = (
            f"{times} evaluations of {len(rows.f)} rows; moved instead, {certain(rows)} rows each are read for certain"
        )
        return Score(share, share, chance, said, noise=1 / len(rows.f) ** 0.5)


def told_of(rows: EvaluatedRows, times: int, rng: np.random.Generator, *, marks: bool = True) -> float:
    """Return what so many evaluations, on a model that stands still, tell of the others' part of the first output,
    beside own parts and labels; not marks: by marks that the attacker did not set."""
    grid, n = np.unique(rows.told(0)[:, 0]), len(rows.f)
    log = np.zeros((n, len(grid)))
    for time in range(times):
        half = rng.permutation(n) < n / 2
        place = np.abs(rows.told(1 + time)[:, :1] - grid).argmin(axis=1)
        count = np.stack([np.bincount(place[half == side], minlength=len(grid)) for side in (False, True)]) + 0.5
        known = half if marks else rng.permutation(half)
        log += np.log(count / count.sum(axis=0))[known.astype(int)]
    weight = np.exp(log - log.max(axis=1, keepdims=True))
    weight *= np.bincount(np.abs(rows.told(0)[:, :1] - grid).argmin(axis=1), minlength=len(grid))
    guess = weight @ grid / weight.sum(axis=1)
    return explained(guess, rows.parts[:, 0], rows.own[:, 0], rows.label[:, 0].astype(float))


def certain(rows: EvaluatedRows) -> int:
    """How many rows of an evaluation are read for certain, each alone in a window of its own, of either mark."""
    widest = 2.0 ** math.ceil(math.log2(max(2 * float(np.abs(rows.f).max()), rows.levels.size)))
    return max(0, 2 * int(2 * rows.levels.reach / widest) - 1)


# Rows found again by the levels of all their outputs, of a model of several classes.
#
# Told together, the levels of a row's c outputs are as good as its name to who knows its own parts of them: the nearest
# tuple is the row's, by how far the others' parts spread in each direction. On shares every output is shuffled by
# itself, so the attacker has to find the row's place in each, by ranks, and no tuple tells it whether it was right.


ROUNDS = 20  # of learning how far the others' parts spread


class LinkedOutputs(Attack):
    name = "linked_outputs"
    paper = "linking by nearest neighbours (Narayanan and Shmatikov 2008, robust de-anonymization of large datasets)"
    measures = "share of the rows all of whose levels are named, output by output; chance: by own parts of other rows"
    needs = (*MEASURED, (lambda job: not job.model.loss.single, "the model has one output, and links none"))
    remedy = always("none: outputs are shuffled apart, and it has no more than ranks to go by")

    def score(self, worlds: Worlds) -> Score:
        rows, _ = measured(worlds)
        share = linked_apart(rows, worlds.seed)
        blind = replace(rows, own=np.random.default_rng([worlds.seed, 8]).permutation(rows.own))
        said = f"as tuples, {linked_together(rows, worlds.seed):.0%} would be found"
        noise = (share * (1 - share) / len(rows.f)) ** 0.5
        return Score(share, share, linked_apart(blind, worlds.seed), said, noise=noise)


def linked_apart(rows: EvaluatedRows, seed: int) -> float:
    """Return the share of rows whose level is named rightly in every output, by ranks."""
    told = rows.told(seed)
    return float((matched(rows.own, rows.label, told, rows.label) == told).all(axis=1).mean())


def linked_together(rows: EvaluatedRows, seed: int) -> float:
    """Return the share of rows whose tuple is the one nearest to their own parts, had tuples been told with the
    label."""
    told = rows.told(seed)
    own, tuples = rows.own - rows.own.mean(axis=0), told - told.mean(axis=0)
    unlike = (rows.label[:, None] != rows.label[None]).any(axis=2)
    spread, turn = np.ones(own.shape[1]), np.eye(own.shape[1])
    for _ in range(ROUNDS):
        here, there = (X @ turn / np.sqrt(spread) for X in (own, tuples))
        apart = ((here[:, None] - there[None]) ** 2).sum(axis=2)
        apart[unlike] = np.inf
        nearest = apart.argmin(axis=1)
        spread, turn = np.linalg.eigh(np.cov((tuples[nearest] - own).T))  # of the others' parts, if these are right
        spread = np.maximum(spread, rows.levels.size**2 / 6)  # what rounding alone does
    return float((nearest == np.arange(len(own))).mean())
