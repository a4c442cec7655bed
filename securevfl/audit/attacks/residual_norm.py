"""Label from the norm of the residual (Li et al. 2022, section 3.1).

Where one class is rare, a model that has learned anything predicts the frequent one with more confidence, so the rows
of the rare class have the larger |g|. The attacker knows which class is rare. The score is best on unbalanced data.
"""

from __future__ import annotations

import numpy as np

from securevfl.audit.attacks.base import SINGLE, LabelAttack, mean_by_row
from securevfl.audit.recording.views import View, Worlds
from securevfl.base.arrays import Floats
from securevfl.job import Job


class ResidualNorm(LabelAttack):
    name = "residual_norm"
    paper = "Li et al. 2022, label leakage and protection in two-party split learning"

    def why_not(self, job: Job) -> str:
        return super().why_not(job) or ("" if job.model.loss.single else SINGLE)

    def guess(self, view: View, worlds: Worlds) -> Floats:
        norms = [(rows, np.linalg.norm(g, axis=1, keepdims=True)) for rows, g in view.estimates()]
        rare = 1.0 if worlds.labels.mean() < 0.5 else -1.0
        return rare * mean_by_row(norms, len(view.X), 1)
