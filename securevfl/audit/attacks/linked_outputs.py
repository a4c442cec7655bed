"""Rows found again by the levels of all their outputs, of a model of several classes.

Told together, the levels of a row's c outputs are as good as its name to who knows its own parts of them: the nearest
tuple is the row's, by how far the others' parts spread in each direction. On shares every output is shuffled by
itself, so the attacker has to find the row's place in each, by ranks, and no tuple tells it whether it was right.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from securevfl.audit.attacks.base import Attack, Score, fixed_remedy
from securevfl.audit.attacks.evaluated_rows import MEASURED, EvaluatedRows, measured
from securevfl.audit.attacks.rank_matching import matched
from securevfl.audit.recording.real_ideal_pair import RealIdealPair

ROUNDS = 20  # of learning how far the others' parts spread


class LinkedOutputs(Attack):
    name = "linked_outputs"
    paper = "linking by nearest neighbours (Narayanan and Shmatikov 2008, robust de-anonymization of large datasets)"
    measures = "share of the rows all of whose levels are named, output by output; chance: by own parts of other rows"
    requirements = (*MEASURED, (lambda job: not job.model.loss.single, "the model has one output, and links none"))
    remedy = fixed_remedy("none: outputs are shuffled apart, and it has no more than ranks to go by")

    def score(self, pair: RealIdealPair) -> Score:
        rows, _ = measured(pair)
        share = linked_apart(rows, pair.seed)
        blind = replace(rows, own=np.random.default_rng([pair.seed, 8]).permutation(rows.own))
        said = f"as tuples, {linked_together(rows, pair.seed):.0%} would be found"
        noise = (share * (1 - share) / len(rows.f)) ** 0.5
        return Score(share, share, linked_apart(blind, pair.seed), said, noise=noise)


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
