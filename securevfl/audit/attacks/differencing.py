"""One party's summand from the difference of two sums (differencing; Dwork and Roth 2014, section 1.1).

A sum over parties hides its summands, the outputs X_k theta_k of the single parties. But two sums over the same rows
differ by X_k (theta_k' - theta_k) if only party k changed its weights in between, from theta_k to theta_k'. The
sequential mode of FedBCD requests such sums: after each exchange only one party takes its steps. The active party
subtracts. The sums are its declared output, so the attack succeeds on the ideal view as well. The remedy is the
parallel mode, in which all parties change their weights at once.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from securevfl.audit.attacks.base import HIDDEN_PARTS, NOT_ON_SHARES, WEIGHT_PER_COLUMN, Attack, Score
from securevfl.audit.recording.column_numbers import by_batch
from securevfl.audit.recording.party_recording import Recording
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.base.arrays import Floats
from securevfl.families.facts import RunFacts
from securevfl.job import Job

PARALLEL_MODE = "the parallel mode, in which all parties change their weights at once"


class Differencing(Attack):
    """Correlates differences of consecutive sums with the changes of single parties' outputs."""

    name = "differencing"
    paper = "Dwork and Roth 2014, the algorithmic foundations of differential privacy, section 1.1"
    measures = "mean |correlation| of the difference of two sums with the change of one party's part"
    requirements = (
        NOT_ON_SHARES,
        (lambda job: not job.family.uses_stored_sums, "differences of stored sums are attacked as received columns"),
        HIDDEN_PARTS,
        WEIGHT_PER_COLUMN,
    )

    def remedy(self, job: Job, known: RunFacts, attacker: str) -> str:
        """Return text that recommends the parallel mode, or more parties if the job uses that mode already."""
        if job.optimizer.exchanges([party.name for party in known.parties[1:]]) > 1:
            return PARALLEL_MODE
        return "more parties in the sum: the sum itself discloses it, because one part outweighs the others"

    def score(self, pair: RealIdealPair) -> Score:
        """Return the mean absolute correlation of differences of sums with the true changes of one party's outputs.

        The score of chance is the mean for random vectors of the same length.
        """
        names = [party.name for party in pair.passives]
        real, ideal = (
            _correlation(recording, pair.active.name, names) for recording in (pair.real_run[1], pair.ideal_run[1])
        )
        rows = pair.schedule.smallest_batch
        return Score(real, ideal, float(np.sqrt(2 / (np.pi * rows))))


def _correlation(recording: Recording, active: str, passives: list[str]) -> float:
    """Correlate the differences of consecutive sums on one batch with the change of the party that fits best.

    If an iteration has several sums, only differences between sums of one iteration count. Otherwise, differences
    between sums of different iterations count.
    """
    sums = by_batch(recording[active].sums)
    parts = [by_batch(recording[name].sums) for name in passives]
    within: list[float] = []
    between: list[float] = []
    for index, totals in sums.items():
        for i, (before, after) in enumerate(pairwise(totals)):
            difference = (after.values - before.values).ravel()
            changes = [(part[index][i + 1].values - part[index][i].values).ravel() for part in parts]
            if np.any(difference):
                correlations = within if before.iteration == after.iteration else between
                correlations.append(max((_absolute_correlation(difference, change) for change in changes), default=0.0))
    return float(np.mean(within or between)) if within or between else 0.0


def _absolute_correlation(a: Floats, b: Floats) -> float:
    a, b = a - a.mean(), b - b.mean()
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return abs(float(a @ b)) / size if size > 0 else 0.0
