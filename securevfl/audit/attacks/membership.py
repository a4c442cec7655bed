"""Membership inference from the model's loss on a row (Yeom et al. 2018, section 3.2).

The attacker may request predictions of the joint model and knows the labels of the rows that it requests. Training rows
have a smaller loss than others, and the more so the more the model overfits. The score depends only on the finished
model, whatever the protocol. It needs held-out rows (`test_fraction`).
"""

from __future__ import annotations

import numpy as np

from securevfl.audit.attacks.base import (
    Attack,
    AttackerRole,
    Score,
    auc_noise,
    fixed_remedy,
    label_auc,
)
from securevfl.audit.recording.real_ideal_pair import RealIdealPair


class Membership(Attack):
    """Ranks rows by the loss of the finished model."""

    name = "membership"
    paper = "Yeom et al. 2018, privacy risk in machine learning: analyzing the connection to overfitting"
    measures = "AUC of rows that were trained on against held-out rows"
    attacker_role = AttackerRole.ANY
    two_sided = True
    requirements = ((lambda job: job.test_fraction > 0, "the job holds out no rows for comparison"),)
    remedy = fixed_remedy("stronger l2, fewer epochs")

    def score(self, pair: RealIdealPair) -> Score:
        """Return the AUC of the negative loss on the real and on the ideal model."""
        member = np.zeros(len(pair.active), np.intp)
        member[pair.schedule.train] = 1
        loss, aucs = pair.job.model.loss, []
        for run in (pair.real_run[0], pair.ideal_run[0]):
            f = run.decision({party.name: party.X for party in pair.parties if party.columns})
            losses = loss.value(f, loss.targets(pair.active.labels, run.active.label_classes))
            aucs.append(label_auc(-losses, member))
        return Score(aucs[0], aucs[1], 0.5, noise=auc_noise(member))
