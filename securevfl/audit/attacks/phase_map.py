"""Columns from summed phases by a linear map learned on a few known rows (against random features; known plaintext).

Private frequencies leave one thing: where phases stay within half a turn they are a linear image of the others'
columns. An attacker that knows the columns of more rows than there are columns fits the map back and applies it to all
rows. It is in the declared output of FDSKL, whatever the sum, and `explain` says so.
"""

from __future__ import annotations

import numpy as np

from securevfl.audit.attacks.base import Attack, Score
from securevfl.audit.attacks.phases import explained, first_exchange
from securevfl.audit.recording.views import View, Worlds
from securevfl.job import Job
from securevfl.methods.base import Known
from securevfl.models.kernel import Kernel


class PhaseMap(Attack):
    name = "phase_map"
    paper = "Turgay et al. 2008, disclosure risks of distance preserving data transformations (known samples)"
    measures = "share of the variance of the others' columns that is found, with a few rows known"

    def applies_to(self, job: Job) -> bool:
        return isinstance(job.model, Kernel)

    def remedy(self, job: Job, known: Known, attacker: str) -> str:
        return "frequencies of one's own; scale columns so that phases wrap"

    def score(self, worlds: Worlds) -> Score:
        views = worlds.real(worlds.active.name), worlds.ideal(worlds.active.name)
        real, simulated = (_found(view, worlds) for view in views)
        return Score(real, simulated, 0.0)


def _found(view: View, worlds: Worlds) -> float:
    rows, u, _ = first_exchange(view, worlds)
    X = np.hstack([worlds.real(party.name).X for party in worlds.passives])[rows]
    known = min(len(rows) // 2, max(8, 3 * X.shape[1]))
    design = np.column_stack([u, np.ones(len(u))])
    back = np.linalg.lstsq(design[:known], X[:known])[0]
    return explained(design[known:] @ back, X[known:])
