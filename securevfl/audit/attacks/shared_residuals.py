"""Labels ranked by what a party knows of residuals that are shared: its own shares, and masked ones that came.

A residual follows its label, so any part of it would: the mean, over all visits, of the words about a row is where a
bias of masks shows. One keystream used again, or an entry opened without its pad, raises it. The order of the classes
is taken from a few labels that the attacker knows.
"""

from __future__ import annotations

import numpy as np

from securevfl.audit.attacks.base import SINGLE_OUTPUT, LabelAttack, known_rows
from securevfl.audit.recording.party_view import PartyView
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.base.arrays import Floats


class SharedResiduals(LabelAttack):
    name = "shared_residual"
    paper = "Li et al. 2022, label leakage from residuals, on shares of these"
    randomized = True
    requirements = (
        (lambda job: job.protocol.shares is not None, "no residual is shared in this job"),
        *LabelAttack.requirements,
        SINGLE_OUTPUT,
    )

    def guess(self, view: PartyView, pair: RealIdealPair) -> Floats:
        mean = view.mean_by_row([(view.rows[each.index], each.values) for each in view.shared])
        known = known_rows(pair)
        slope = float(np.nan_to_num(mean[known, 0]) @ (pair.labels[known] - pair.labels[known].mean()))
        guess = mean if slope >= 0 else -mean
        guess[known] = np.nan
        return guess
