"""Labels from a party's shares of residuals and from masked residuals that it received.

A residual depends on the label of its row. On secret shares a party receives only numbers that hide it: a share, or the
residual plus a mask. If masks were biased, the bias would show in the mean of a row's numbers over all iterations. A
keystream that is used twice, or an entry that is opened without its mask, would also raise the score.
"""

from __future__ import annotations

import numpy as np

from securevfl.audit.attacks.base import SINGLE_OUTPUT, LabelAttack, known_rows
from securevfl.audit.recording.party_view import PartyView
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.base.arrays import Floats


class SharedResiduals(LabelAttack):
    """Ranks rows by the mean share of their residual; a few known labels give the order of the classes."""

    name = "shared_residual"
    paper = "Li et al. 2022, label leakage from residuals, applied to shares of residuals"
    randomized = True
    requirements = (
        (lambda job: job.protocol.shares is not None, "the job does not share residuals"),
        *LabelAttack.requirements,
        SINGLE_OUTPUT,
    )

    def guess(self, view: PartyView, pair: RealIdealPair) -> Floats:
        """Score each row by the mean of the shares of its residual that the attacker received, over all iterations."""
        mean = view.mean_by_row([(view.rows[words.index], words.values) for words in view.residual_shares])
        known = known_rows(pair)
        slope = float(np.nan_to_num(mean[known, 0]) @ (pair.labels[known] - pair.labels[known].mean()))
        guess = mean if slope >= 0 else -mean
        guess[known] = np.nan
        return guess
