"""Rows of a model with several classes, recognised by the levels of all their outputs.

A level is a model output, rounded to a grid. If the levels of a row's c outputs were disclosed together, a party could
recognise the row by its own contributions to these outputs (its columns times their weights): the tuple of levels
nearest to them belongs to the row, in the metric of the other parties' contributions. On secret shares the levels of
every output are shuffled separately. So the attacker has to find the row in each output by ranks, and no tuple confirms
a guess.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np

from securevfl.audit.attacks.base import Score, fixed_remedy
from securevfl.audit.attacks.evaluated_rows import PAIRS_DISCLOSED, EvaluatedRows, PairsAttack, evaluated_rows
from securevfl.audit.attacks.rank_matching import match_by_rank
from securevfl.audit.recording.real_ideal_pair import RealIdealPair

COVARIANCE_ROUNDS = 20
"""Number of rounds that estimate the covariance of the others' parts."""


class LinkedOutputs(PairsAttack):
    """Guesses the levels of all outputs of a row, output by output."""

    name = "linked_outputs"
    paper = "linking by nearest neighbours (Narayanan and Shmatikov 2008, robust de-anonymization of large datasets)"
    measures = "share of the rows of which all levels are named, by output; chance: with the attacker's parts permuted"
    leak_threshold = inf
    requirements = (*PAIRS_DISCLOSED, (lambda job: not job.model.loss.single, "the model has one output only"))
    remedy = fixed_remedy("none needed: outputs are shuffled separately, so the attacker has only ranks")

    def score(self, pair: RealIdealPair) -> Score:
        """Return the share of rows whose levels the attacker guesses right in every output.

        The score of chance is the same share after the attacker's contributions were permuted among the rows.
        """
        rows, _ = evaluated_rows(pair)
        share = linked_apart(rows, pair.seed)
        permuted = np.random.default_rng([pair.seed, 8]).permutation(rows.attacker_part)
        detail = f"if outputs were disclosed as tuples, {linked_together(rows, pair.seed):.0%} would be found"
        noise = (share * (1 - share) / len(rows.f)) ** 0.5
        chance = linked_apart(replace(rows, attacker_part=permuted), pair.seed)
        return Score(share, share, chance, detail, noise=noise)


def linked_apart(rows: EvaluatedRows, seed: int) -> float:
    """Guess the level of each row in every output separately, by ranks; return the share of rows guessed right."""
    levels = rows.disclosed_levels(seed)
    return float((match_by_rank(rows.attacker_part, rows.labels, levels, rows.labels) == levels).all(axis=1).mean())


def linked_together(rows: EvaluatedRows, seed: int) -> float:
    """Return the share of rows that could be recognised if the levels of all outputs were disclosed together."""
    levels = rows.disclosed_levels(seed)
    parts, tuples = rows.attacker_part - rows.attacker_part.mean(axis=0), levels - levels.mean(axis=0)
    other_label = (rows.labels[:, None] != rows.labels[None]).any(axis=2)
    variances, axes = np.ones(parts.shape[1]), np.eye(parts.shape[1])
    for _ in range(COVARIANCE_ROUNDS):
        scaled_parts, scaled_tuples = (X @ axes / np.sqrt(variances) for X in (parts, tuples))
        distance = ((scaled_parts[:, None] - scaled_tuples[None]) ** 2).sum(axis=2)
        distance[other_label] = np.inf
        nearest = distance.argmin(axis=1)
        # the covariance of the other parties' contributions is estimated as if every nearest tuple were the right one
        variances, axes = np.linalg.eigh(np.cov((tuples[nearest] - parts).T))
        variances = np.maximum(variances, rows.levels.size**2 / 6)  # rounding to the grid causes at least this variance
    return float((nearest == np.arange(len(parts))).mean())
