"""A single part of a sum, to the last bit, where parties take their steps in turn (FedBCD 2019, sequential mode).

In the first visit all passive parties start from zero weights. Between two exchanges one of them takes its steps, so
the difference of two consecutive sums is that party's part, whatever hides the parts in each sum. In later visits the
difference is that party's change, and a later difference adds to it; `differencing` measures those. The party that
moves last in a visit is seen together with all that happens before the next one.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from securevfl.audit.attacks.base import HIDDEN_PARTS, WEIGHT_PER_COLUMN, Attack, Score, fixed_remedy
from securevfl.audit.attacks.differencing import PARALLEL
from securevfl.audit.recording.party_recording import Recording
from securevfl.audit.recording.real_ideal_pair import RealIdealPair

EXACT = 1e-6  # relative error from which a part counts as found


class FirstDifference(Attack):
    name = "first_difference"
    paper = "Liu et al. 2019, FedBCD, sequential mode; Dwork and Roth 2014, section 1.1, differencing"
    measures = "share of the passive parties whose first part is the difference of two sums"
    leak_threshold = 0.0
    requirements = (
        (lambda job: job.optimizer.exchanges(("one", "two")) > 1, "all parties move at once"),
        HIDDEN_PARTS,
        WEIGHT_PER_COLUMN,
    )
    remedy = fixed_remedy(PARALLEL)

    def score(self, pair: RealIdealPair) -> Score:
        real, ideal = (_share_found(pair, tape) for tape in (pair.real_run[1], pair.ideal_run[1]))
        return Score(real[0], ideal[0], 0.0, real[1])


def _share_found(pair: RealIdealPair, tape: Recording) -> tuple[float, str]:
    """Share of the passive parties, and in words whose part and how exactly."""
    names = [party.name for party in pair.passives]
    first = [total.values for total in tape[pair.active.name].totals if total.visit == 0]
    errors: dict[str, float] = {}
    for place, (before, after) in enumerate(pairwise(first)):
        name = names[place]
        part = [total.values for total in tape[name].totals if total.visit == 0][place + 1]
        size = float(np.linalg.norm(part))
        error = float(np.linalg.norm(after - before - part)) / size if size > 0 else np.inf
        if error < EXACT:
            errors[name] = error
    if not errors:
        return 0.0, ""
    return len(errors) / len(names), f"part of {', '.join(errors)}, off by {max(errors.values()):.0e} at most"
