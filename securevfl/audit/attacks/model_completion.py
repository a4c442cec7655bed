"""Labels by completing one's own half of the model (Fu et al. 2022, USENIX Security, section 4.2).

The trained bottom model of a passive party has learned to tell the classes apart. The attacker knows the labels of a
few rows, sets a head on top of its own outputs and columns, and predicts all others. No protocol hides this: what a
party's own columns say about the label, it learns by taking part.
"""

from __future__ import annotations

import numpy as np

from securevfl.audit.attacks.base import NUMBERS, LabelAttack, known_rows
from securevfl.audit.findings import NO_MESSAGE
from securevfl.audit.recording.views import View, Worlds
from securevfl.base.arrays import Floats
from securevfl.job import Job
from securevfl.methods.base import Known


class ModelCompletion(LabelAttack):
    name = "model_completion"
    paper = "Fu et al. 2022, label inference attacks against vertical federated learning"

    def why_not(self, job: Job) -> str:
        return "" if job.model.loss.classifies else NUMBERS

    def remedy(self, job: Job, known: Known, attacker: str) -> str:
        return NO_MESSAGE

    def guess(self, view: View, worlds: Worlds) -> Floats:
        return complete(own(view), view, worlds)


def own(view: View) -> Floats:
    """Return the party's columns and, where its weights are by column, its outputs on all rows."""
    return np.column_stack([view.X, view.X @ view.theta]) if len(view.theta) == view.X.shape[1] else view.X


def complete(features: Floats, view: View, worlds: Worlds) -> Floats:
    """Scores (m x c) of a logistic head on features (m x k) that is taught a few labels; NaN on those rows."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    known, train = known_rows(worlds), worlds.schedule.train
    scaled = StandardScaler().fit(features[train]).transform(features)
    head = LogisticRegression(C=0.1, max_iter=200).fit(scaled[known], worlds.labels[known])
    f = head.decision_function(scaled)
    scores = np.full((len(features), view.outputs), np.nan)
    hidden = np.setdiff1d(train, known)
    scores[hidden] = f[hidden, None] if f.ndim == 1 else f[hidden]
    return scores
