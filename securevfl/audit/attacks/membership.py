"""Membership inference from the model's loss on a row."""

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
    name = "membership"
    paper = "Yeom et al. 2018, privacy risk in machine learning: analyzing the connection to overfitting"
    measures = "AUC of trained on or held out"
    attacker_role = AttackerRole.ANY
    two_sided = True
    requirements = ((lambda job: job.test_fraction > 0, "no rows are held out that were not trained on"),)
    remedy = fixed_remedy("stronger l2, fewer epochs")

    def score(self, pair: RealIdealPair) -> Score:
        member = np.zeros(len(pair.active), np.intp)
        member[pair.schedule.train] = 1
        loss, aucs = pair.job.model.loss, []
        for run in (pair.real_run[0], pair.ideal_run[0]):
            f = run.decision({party.name: party.X for party in pair.parties if party.columns})
            losses = loss.value(f, loss.targets(pair.active.labels, run.active.label_classes))
            aucs.append(label_auc(-losses, member))
        return Score(aucs[0], aucs[1], 0.5, noise=auc_noise(member))
