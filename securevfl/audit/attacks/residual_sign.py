"""Label from the sign of the residual (Li et al. 2022, section 3; known since Liu et al. 2019's open FedBCD).

A residual that is read gives the label by the loss's own `undo`: for a logistic or hinge loss g < 0 exactly where
y = 1, for softmax the one negative entry of a row marks its class.
Under a sealed residual the attacker takes the least-norm g that fits its opened gradient.
"""

from __future__ import annotations

import numpy as np

from securevfl.audit.attacks.base import LabelAttack, mean_by_row
from securevfl.audit.recording.views import View, Worlds
from securevfl.base.arrays import Floats


class ResidualSign(LabelAttack):
    name = "residual_sign"
    paper = "Li et al. 2022, label leakage and protection in two-party split learning"

    def guess(self, view: View, worlds: Worlds) -> Floats:
        undo = worlds.job.loss.undo
        read = [(rows, np.nan_to_num(undo(g).targets)) for rows, g in view.residuals()]
        signs = read or [(rows, -np.sign(g)) for rows, g in view.estimates()]
        return mean_by_row(signs, len(view.X), view.outputs)
