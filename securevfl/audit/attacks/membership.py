"""Whether a row was trained on, from the model's loss on it (Yeom et al. 2018, section 3.2).

The attacker may ask the joint model for predictions and knows the labels of the rows it asks about. Rows of the
training set have the smaller loss, the more so the more the model overfits. Every training that ends in the same model
leaks the same here; the score needs held-out rows (`test_fraction`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securevfl.audit.attacks.base import Attack, By, Score, auc_noise
from securevfl.audit.recording.views import Worlds
from securevfl.job import Job
from securevfl.methods.base import Known
from securevfl.training.run import Run


class Membership(Attack):
    name = "membership"
    paper = "Yeom et al. 2018, privacy risk in machine learning: analyzing the connection to overfitting"
    measures = "AUC of trained on or held out"
    by = By.ANYONE
    flips = True

    def why_not(self, job: Job) -> str:
        return "" if job.test_fraction > 0 else "no rows are held out that were not trained on"

    def remedy(self, job: Job, known: Known, attacker: str) -> str:
        return "stronger l2, fewer epochs"

    def score(self, worlds: Worlds) -> Score:
        noise = auc_noise(_members(worlds).astype(np.intp))
        return Score(_auc(worlds, worlds.real_run[0]), _auc(worlds, worlds.ideal_run[0]), 0.5, noise=noise)


def _auc(worlds: Worlds, run: Run) -> float:
    from sklearn.metrics import roc_auc_score

    loss = worlds.job.model.loss
    f = run.decision({party.name: party.X for party in worlds.parties if party.columns})
    losses = loss.value(f, loss.targets(worlds.active.labels, run.active.label_classes))
    return float(roc_auc_score(_members(worlds), -losses))


def _members(worlds: Worlds) -> NDArray[np.bool_]:
    """Which rows were trained on (m,)."""
    member = np.zeros(len(worlds.active), bool)
    member[worlds.schedule.train] = True
    return member
