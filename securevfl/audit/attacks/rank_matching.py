"""Scores of held-out rows, by matching the attacker's contribution to f with the disclosed levels in order of size.

f is the model output of a row, and a level is f, rounded to a grid. The party with labels learns which levels the rows
of each label have, in a hidden order. It knows the label of each row and at best its own contribution to f, its columns
times their weights. For each label it sorts rows by its contribution and levels by size, and matches them in order. The
levels of other rows would also show how its contribution and the scores are related. The attack's score is therefore
how much better the levels of these rows explain the other parties' contribution than the levels of other rows do: only
that difference is disclosed about single rows.
"""

from __future__ import annotations

import numpy as np

from securevfl.audit.attacks.base import Score, fixed_remedy
from securevfl.audit.attacks.evaluated_rows import EvaluatedRows, PairsAttack, evaluated_rows
from securevfl.audit.attacks.new_row_scores import added_variance
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.base.arrays import Floats
from securevfl.models.rounded_labels import Codes


class RankMatching(PairsAttack):
    """Guesses scores of held-out rows by matching ranks."""

    name = "rank_matching"
    paper = "rank matching of sorted values (after Naveed, Kamara and Wright 2015, sorting attack)"
    measures = "share of the variance of the others' part of f that these rows' levels explain; chance: other rows'"
    remedy = fixed_remedy("hold out more rows (test_fraction)")

    def score(self, pair: RealIdealPair) -> Score:
        """Return the share of the variance of the others' part of f that the levels of these rows explain.

        The score also states the share that levels of other rows explain, which is what an attacker reaches by chance.
        """
        evaluated, other = evaluated_rows(pair)
        share, by_others = (rank_gain(evaluated, rows, pair.seed) for rows in (evaluated, other))
        return Score(share, share, by_others, f"{len(evaluated.f)} rows", noise=1 / len(evaluated.f) ** 0.5)


def rank_gain(rows: EvaluatedRows, levels_of: EvaluatedRows, seed: int) -> float:
    """Return the share of variance of the others' contribution to f that levels explain, averaged over outputs.

    Args:
        rows: the rows to guess.
        levels_of: the rows whose levels are used.
        seed: seed of the rounding.

    Returns:
        A share between 0 and 1.
    """
    guess = match_by_rank(rows.attacker_part, rows.labels, levels_of.disclosed_levels(seed), levels_of.labels)
    by_output = zip(guess.T, rows.other_part.T, rows.attacker_part.T, rows.labels.T.astype(float), strict=True)
    return float(np.mean([added_variance(*output) for output in by_output]))


def match_by_rank(attacker_part: Floats, labels: Codes, levels: Floats, level_labels: Codes) -> Floats:
    """Return a level for each row and output, by the rank of the attacker's contribution among rows of one label.

    Args:
        attacker_part: the attacker's contribution to f (m, c).
        labels: code (m, c) of the label of each row.
        levels: disclosed levels (k, c).
        level_labels: code (k, c) of the label of each level.

    Returns:
        Levels (m, c).
    """
    guess = np.zeros_like(attacker_part)
    for k in range(attacker_part.shape[1]):
        for label in np.unique(labels[:, k]):
            rows, of_label = np.flatnonzero(labels[:, k] == label), np.sort(levels[level_labels[:, k] == label, k])
            if len(rows) and len(of_label):
                rank = np.argsort(np.argsort(attacker_part[rows, k], kind="stable"), kind="stable")
                guess[rows, k] = of_label[(rank * len(of_label)) // len(rows)]
    return guess
