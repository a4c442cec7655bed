"""A single part from the difference of two sums (Dwork and Roth 2014, section 1.1, differencing).

A sum over parties hides its parts, but two sums over the same rows between which one party alone has moved differ by
that party's change X_k (theta_k' - theta_k). The sequential mode of FedBCD asks for just such sums: after each exchange
one party takes its steps. The active party subtracts. The sums are its declared output, so the ideal attacker succeeds
as well; the remedy is the parallel mode, where all parts move at once.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np

from securevfl.audit.attacks.base import BY_COLUMN, ON_SHARES, Attack, Score
from securevfl.audit.recording.views import Tape, Total, Worlds
from securevfl.base.arrays import Floats
from securevfl.job import Job
from securevfl.methods.base import Known


class Differencing(Attack):
    name = "differencing"
    paper = "Dwork and Roth 2014, the algorithmic foundations of differential privacy, section 1.1"
    measures = "mean |correlation| of the difference of two sums with the change of one party's part"

    def why_not(self, job: Job) -> str:
        if job.protocol.method is not None:
            return ON_SHARES
        if job.method.stores:
            return "differences of stored sums are attacked as columns received"
        if not job.protocol.sum_for(2).hides_parts:
            return "the sum hides no part"
        return "" if job.model.by_column else BY_COLUMN

    def remedy(self, job: Job, known: Known, attacker: str) -> str:
        if job.optimizer.exchanges([party.name for party in known.parties[1:]]) > 1:
            return "the parallel mode, in which all parts move at once"
        return "more parties in the sum: it is in what the sum itself tells, and one part outweighs the others"

    def score(self, worlds: Worlds) -> Score:
        names = [party.name for party in worlds.passives]
        real, ideal = (
            _correlation(tape, worlds.active.name, names) for tape in (worlds.real_run[1], worlds.ideal_run[1])
        )
        rows = worlds.schedule.smallest_batch
        return Score(real, ideal, float(np.sqrt(2 / (np.pi * rows))))


def _correlation(tape: Tape, active: str, passives: list[str]) -> float:
    """Correlate the differences of consecutive sums on one batch with the changes of the single party that fits best.

    Only sums within one visit are taken, if there are any.
    """
    sums = _by_batch(tape, active)
    parts = {name: _by_batch(tape, name) for name in passives}
    within: list[float] = []
    between: list[float] = []
    for index, totals in sums.items():
        for i, (before, after) in enumerate(pairwise(totals)):
            seen = (after.values - before.values).ravel()
            moved = [(own[index][i + 1].values - own[index][i].values).ravel() for own in parts.values()]
            if np.any(seen):
                found = within if before.visit == after.visit else between
                found.append(max((_cosine(seen, change) for change in moved), default=0.0))
    return float(np.mean(within or between)) if within or between else 0.0


def _by_batch(tape: Tape, name: str) -> dict[int, list[Total]]:
    by_batch: dict[int, list[Total]] = defaultdict(list)
    for total in tape.totals[name]:
        by_batch[total.index].append(total)
    return by_batch


def _cosine(a: Floats, b: Floats) -> float:
    a, b = a - a.mean(), b - b.mean()
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return abs(float(a @ b)) / size if size > 0 else 0.0
