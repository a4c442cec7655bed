"""Labels ranked by what a party knows of residuals that are shared: its own shares, and masked ones that came.

A residual follows its label, so any part of it would: the mean, over all visits, of the words about a row is where a
bias of masks shows. One keystream used again, or an entry opened without its pad, raises it. The order of the classes
is taken from a few labels that the attacker knows.
"""

from __future__ import annotations

import numpy as np

from securevfl.audit.attacks.base import SINGLE, LabelAttack, known_rows, mean_by_row
from securevfl.audit.recording.views import View, Worlds
from securevfl.base.arrays import Floats
from securevfl.job import Job


class SharedResiduals(LabelAttack):
    name = "shared_residual"
    paper = "Li et al. 2022, label leakage from residuals, on shares of these"
    drawn = True

    def why_not(self, job: Job) -> str:
        if job.protocol.shares is None:
            return "no residual is shared in this job"
        return super().why_not(job) or ("" if job.model.loss.single else SINGLE)

    def guess(self, view: View, worlds: Worlds) -> Floats:
        found = [(view.rows[each.index], each.values) for each in view.shared]
        mean = mean_by_row(found, len(view.X), view.outputs)
        known = known_rows(worlds)
        slope = float(np.nan_to_num(mean[known, 0]) @ (worlds.labels[known] - worlds.labels[known].mean()))
        guess = mean if slope >= 0 else -mean
        guess[known] = np.nan
        return guess
