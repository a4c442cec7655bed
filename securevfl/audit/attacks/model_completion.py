"""Labels by completing one's own half of the model (Fu et al. 2022, USENIX Security, section 4.2).

The trained bottom model of a passive party has learned to tell the classes apart. The attacker knows the labels of a
few rows, sets a head on top of its own outputs and columns, and predicts all others. No protocol hides this: what a
party's own columns say about the label, it learns by taking part.
"""

from __future__ import annotations

import numpy as np

from securevfl.audit.attacks.base import (
    CLASSIFICATION,
    LabelAttack,
    fixed_remedy,
    known_rows,
)
from securevfl.audit.findings import NO_MESSAGE
from securevfl.audit.recording.party_view import PartyView
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.base.arrays import Floats


class ModelCompletion(LabelAttack):
    name = "model_completion"
    paper = "Fu et al. 2022, label inference attacks against vertical federated learning"
    requirements = (CLASSIFICATION,)

    remedy = fixed_remedy(NO_MESSAGE)

    def guess(self, view: PartyView, pair: RealIdealPair) -> Floats:
        return complete(columns_and_outputs(view), view, pair)


def columns_and_outputs(view: PartyView) -> Floats:
    """Return the party's columns and, where its weights are by column, its outputs on all rows."""
    return np.column_stack([view.X, view.X @ view.theta]) if len(view.theta) == view.X.shape[1] else view.X


def complete(features: Floats, view: PartyView, pair: RealIdealPair) -> Floats:
    """Scores (m x c) of a logistic head on features (m x k) that is taught a few labels; NaN on those rows."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    known, train = known_rows(pair), pair.schedule.train
    scaled = StandardScaler().fit(features[train]).transform(features)
    head = LogisticRegression(C=0.1, max_iter=200).fit(scaled[known], pair.labels[known])
    f = head.decision_function(scaled)
    scores = np.full((len(features), view.outputs), np.nan)
    hidden = np.setdiff1d(train, known)
    scores[hidden] = f[hidden, None] if f.ndim == 1 else f[hidden]
    return scores
