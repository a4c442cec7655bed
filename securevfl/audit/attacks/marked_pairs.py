"""Scores of held-out rows by a party with labels that deviates: it marks rows by the label that it puts beside them.

The bit beside a level is what the party chooses. In each evaluation it marks another random half of the rows, sees
how many rows of each half are at each level, and weighs for each row the levels by how many of the rows marked as it
was lie there (naive Bayes). It may also move rows by what it adds to its own share: levels reach further than scores
do, so the range has room for some more windows, each with one row alone, which it reads for certain.

Nothing keeps it from either, and authenticated labels would not. The other party's ledger bounds it: the same rows
are evaluated once for each ROWS_PER_MEASURE of them, over all runs.
"""

from __future__ import annotations

import math

import numpy as np

from securevfl.audit.attacks.base import Score, fixed_remedy
from securevfl.audit.attacks.evaluated_rows import EvaluatedRows, PairsAttack, measured
from securevfl.audit.attacks.new_row_scores import explained
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.protocols.score_ledger.limits import ROWS_PER_EVALUATION


class MarkedPairs(PairsAttack):
    name = "marked_pairs"
    paper = "tracker attack on counts (Denning, Denning and Schwartz 1979), by a party that deviates"
    measures = "share of the variance of the others' part of f that marked evaluations add, as many as a ledger allows"
    remedy = fixed_remedy("let rows be measured fewer times; a smaller metrics_range leaves room for fewer single rows")

    def score(self, pair: RealIdealPair) -> Score:
        rows, _ = measured(pair)
        times = max(1, len(rows.f) // ROWS_PER_EVALUATION)
        rng = np.random.default_rng([pair.seed, 9])
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
