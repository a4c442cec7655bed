"""Scores of held-out rows from the levels of all of them: the row with the largest own part takes the largest level.

The party with labels is told which levels the rows of each label have, in a hidden order. It knows each row's label
and at best its own part, so within a label it sorts both and takes them in turn. What the levels of these rows add to
those of other rows, which say how own parts go with scores as well, is what an evaluation tells of single rows.
"""

from __future__ import annotations

import numpy as np

from securevfl.audit.attacks.base import Score, fixed_remedy
from securevfl.audit.attacks.evaluated_rows import EvaluatedRows, Marks, PairsAttack, measured
from securevfl.audit.attacks.new_row_scores import explained
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.base.arrays import Floats


class RankMatching(PairsAttack):
    name = "rank_matching"
    paper = "rank matching of sorted values (after Naveed, Kamara and Wright 2015, sorting attack)"
    measures = "share of the variance of the others' part of f that levels of these rows add; chance: of other rows"
    remedy = fixed_remedy("hold out more rows (test_fraction)")

    def score(self, pair: RealIdealPair) -> Score:
        own, other = measured(pair)
        share, by_others = (gained(own, each, pair.seed) for each in (own, other))
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
