"""A single part of a sum from the difference of two sums."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from securevfl.audit.attacks.base import HIDDEN_PARTS, NOT_ON_SHARES, WEIGHT_PER_COLUMN, Attack, Score
from securevfl.audit.recording.column_numbers import by_batch
from securevfl.audit.recording.party_recording import Recording
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.base.arrays import Floats
from securevfl.families.run_facts import RunFacts
from securevfl.job import Job

PARALLEL = "the parallel mode, in which all parts move at once"


class Differencing(Attack):
    name = "differencing"
    paper = "Dwork and Roth 2014, the algorithmic foundations of differential privacy, section 1.1"
    measures = "mean |correlation| of the difference of two sums with the change of one party's part"
    requirements = (
        NOT_ON_SHARES,
        (lambda job: not job.family.uses_stored_sums, "differences of stored sums are attacked as columns received"),
        HIDDEN_PARTS,
        WEIGHT_PER_COLUMN,
    )

    def remedy(self, job: Job, known: RunFacts, attacker: str) -> str:
        if job.optimizer.exchanges([party.name for party in known.parties[1:]]) > 1:
            return PARALLEL
        return "more parties in the sum: it is in what the sum itself tells, and one part outweighs the others"

    def score(self, pair: RealIdealPair) -> Score:
        names = [party.name for party in pair.passives]
        real, ideal = (_correlation(tape, pair.active.name, names) for tape in (pair.real_run[1], pair.ideal_run[1]))
        rows = pair.schedule.smallest_batch
        return Score(real, ideal, float(np.sqrt(2 / (np.pi * rows))))


def _correlation(tape: Recording, active: str, passives: list[str]) -> float:
    """Correlate the differences of consecutive sums on one batch with the changes of the single party that fits best.

    Only sums within one visit are taken, if there are any.
    """
    sums = by_batch(tape[active].totals)
    parts = [by_batch(tape[name].totals) for name in passives]
    within: list[float] = []
    between: list[float] = []
    for index, totals in sums.items():
        for i, (before, after) in enumerate(pairwise(totals)):
            seen = (after.values - before.values).ravel()
            moved = [(part[index][i + 1].values - part[index][i].values).ravel() for part in parts]
            if np.any(seen):
                cosines = within if before.visit == after.visit else between
                cosines.append(max((_cosine(seen, change) for change in moved), default=0.0))
    return float(np.mean(within or between)) if within or between else 0.0


def _cosine(a: Floats, b: Floats) -> float:
    a, b = a - a.mean(), b - b.mean()
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return abs(float(a @ b)) / size if size > 0 else 0.0
