"""One party's summand in a sum, exactly, if parties take their steps in turn (FedBCD 2019, sequential mode).

In the first iteration all passive parties start from zero weights, and between two exchanges one of them takes its
steps. So the difference of two consecutive sums is that party's summand, its outputs, even if each sum hides its
summands. In later iterations the difference is the change of that party's outputs; `differencing` measures those. The
change of the party that moves last in an iteration shows only together with all changes before the next sum.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from securevfl.audit.attacks.base import HIDDEN_PARTS, WEIGHT_PER_COLUMN, Attack, Score, fixed_remedy
from securevfl.audit.attacks.differencing import PARALLEL_MODE
from securevfl.audit.recording.party_recording import Recording
from securevfl.audit.recording.real_ideal_pair import RealIdealPair

EXACT_ERROR = 1e-6
"""Maximum relative error with which a part counts as recovered."""


class FirstDifference(Attack):
    """Recovers summands of the first iteration from differences of sums."""

    name = "first_difference"
    paper = "Liu et al. 2019, FedBCD, sequential mode; Dwork and Roth 2014, section 1.1, differencing"
    measures = "share of the passive parties whose first part is the difference of two sums"
    leak_threshold = 0.0
    requirements = (
        (lambda job: job.optimizer.exchanges(("one", "two")) > 1, "all parties change their weights at once"),
        HIDDEN_PARTS,
        WEIGHT_PER_COLUMN,
    )
    remedy = fixed_remedy(PARALLEL_MODE)

    def score(self, pair: RealIdealPair) -> Score:
        """Return the share of passive parties whose summand of the first iteration is recovered."""
        real, ideal = (_share_recovered(pair, recording) for recording in (pair.real_run[1], pair.ideal_run[1]))
        return Score(real[0], ideal[0], 0.0, real[1])


def _share_recovered(pair: RealIdealPair, recording: Recording) -> tuple[float, str]:
    """Return the share of passive parties whose summand is recovered, and text with their names and errors."""
    names = [party.name for party in pair.passives]
    first = [total.values for total in recording[pair.active.name].sums if total.iteration == 0]
    errors: dict[str, float] = {}
    for index, (before, after) in enumerate(pairwise(first)):
        name = names[index]
        part = [values.values for values in recording[name].sums if values.iteration == 0][index + 1]
        size = float(np.linalg.norm(part))
        error = float(np.linalg.norm(after - before - part)) / size if size > 0 else np.inf
        if error < EXACT_ERROR:
            errors[name] = error
    if not errors:
        return 0.0, ""
    return len(errors) / len(names), f"part of {', '.join(errors)}, relative error at most {max(errors.values()):.0e}"
