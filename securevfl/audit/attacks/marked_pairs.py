"""Scores of held-out rows by a malicious party with labels, which marks rows by the label that it pairs with a level.

The party with labels receives pairs (level, label) of held-out rows in a hidden order; a level is a model output,
rounded to a grid. A malicious party can choose the bit that is paired with a level. In each evaluation it marks another
random half of the rows and learns how many rows of each half have each level. For each row it combines these counts
into a guess of its level (naive Bayes). It may also shift the outputs of chosen rows by changing its share. The grid
reaches further than outputs do, so a few rows can be shifted into ranges of their own, where it learns them exactly.

The protocol prevents neither, and authenticated labels would not either. The ledger of the other party limits both: n
rows may be evaluated at most n / ROWS_PER_EVALUATION times, over all runs.
"""

from __future__ import annotations

import math

import numpy as np

from securevfl.audit.attacks.base import Score, fixed_remedy
from securevfl.audit.attacks.evaluated_rows import EvaluatedRows, PairsAttack, evaluated_rows
from securevfl.audit.attacks.new_row_scores import added_variance
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.protocols.score_ledger.score_limits import max_evaluations


class MarkedPairs(PairsAttack):
    """Guesses scores of held-out rows from evaluations with marked rows."""

    name = "marked_pairs"
    paper = "tracker attack on counts (Denning, Denning and Schwartz 1979), by a party that deviates"
    measures = (
        "share of the variance of the others' part of f that all evaluations allowed by a ledger add, rows marked"
    )
    remedy = fixed_remedy("measure rows fewer times; a smaller metrics_range leaves room for fewer single rows")

    def score(self, pair: RealIdealPair) -> Score:
        """Return the variance that marked evaluations explain; chance is that of marks which the attacker ignores."""
        rows, _ = evaluated_rows(pair)
        evaluations = max_evaluations(len(rows.f))
        rng = np.random.default_rng([pair.seed, 9])
        share, chance = (marked_gain(rows, evaluations, rng, marks=marks) for marks in (True, False))
        exact = exact_rows(rows)
        shifted = "1 row is" if exact == 1 else f"{exact:,} rows are"
        detail = (
            f"{evaluations} evaluations of {len(rows.f):,} rows; by shifting rows instead, {shifted} learned exactly "
            "in each evaluation"
        )
        return Score(share, share, chance, detail, noise=1 / len(rows.f) ** 0.5)


def marked_gain(rows: EvaluatedRows, evaluations: int, rng: np.random.Generator, *, marks: bool = True) -> float:
    """Simulate the attack, and return the share of variance of the others' contribution to f that it explains.

    f is the first output of the model. A party's contribution to f is its columns times their weights.

    Args:
        rows: the evaluated rows.
        evaluations: number of evaluations.
        rng: draws the marks.
        marks: False to guess with marks that differ from those used, for comparison.

    Returns:
        The share of variance that the guess explains in addition to the attacker's contribution and the labels.
    """
    grid, n = np.unique(rows.disclosed_levels(0)[:, 0]), len(rows.f)
    log = np.zeros((n, len(grid)))
    for evaluation in range(evaluations):
        half = rng.permutation(n) < n / 2
        level = np.abs(rows.disclosed_levels(1 + evaluation)[:, :1] - grid).argmin(axis=1)
        count = np.stack([np.bincount(level[half == side], minlength=len(grid)) for side in (False, True)]) + 0.5
        assumed = half if marks else rng.permutation(half)
        log += np.log(count / count.sum(axis=0))[assumed.astype(int)]
    weight = np.exp(log - log.max(axis=1, keepdims=True))
    first_levels = np.abs(rows.disclosed_levels(0)[:, :1] - grid).argmin(axis=1)
    weight *= np.bincount(first_levels, minlength=len(grid))
    guess = weight @ grid / weight.sum(axis=1)
    return added_variance(guess, rows.other_part[:, 0], rows.attacker_part[:, 0], rows.labels[:, 0].astype(float))


def exact_rows(rows: EvaluatedRows) -> int:
    """Return the number of rows whose outputs one evaluation reveals exactly, each shifted to levels of its own."""
    widest = 2.0 ** math.ceil(math.log2(max(2 * float(np.abs(rows.f).max()), rows.levels.size)))
    return max(0, 2 * int(2 * rows.levels.reach / widest) - 1)
