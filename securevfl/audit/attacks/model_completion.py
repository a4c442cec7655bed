"""Labels by completing a party's half of the model (Fu et al. 2022, USENIX Security, section 4.2).

The trained model part of a passive party (without labels) has learned to separate the classes. The attacker knows the
labels of a few rows, trains a small classifier (the head) on the outputs of its part and on its columns, and predicts
all other rows. No protocol prevents this: a party that takes part learns how its columns relate to the label.
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
    """Trains a small classifier (the head) on the party's columns and outputs."""

    name = "model_completion"
    paper = "Fu et al. 2022, label inference attacks against vertical federated learning"
    requirements = (CLASSIFICATION,)

    remedy = fixed_remedy(NO_MESSAGE)

    def guess(self, view: PartyView, pair: RealIdealPair) -> Floats:
        """Return each row's class probabilities by the small classifier that is trained on the known labels."""
        return head_scores(columns_and_outputs(view), view, pair)


def columns_and_outputs(view: PartyView) -> Floats:
    """Return the party's columns and, if it has one weight for each column, its outputs on all rows."""
    return np.column_stack([view.X, view.X @ view.theta]) if len(view.theta) == view.X.shape[1] else view.X


def head_scores(features: Floats, view: PartyView, pair: RealIdealPair) -> Floats:
    """Train a logistic regression on rows with known labels, and apply it to all other rows.

    Args:
        features: features (m, k) of all rows.
        view: everything that the attacker received in a run, with its columns and its weights.
        pair: the real and the ideal run of the job.

    Returns:
        Scores (m, c); NaN on the rows with known labels.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    known, train = known_rows(pair), pair.schedule.train
    scaled = StandardScaler().fit(features[train]).transform(features)
    head = LogisticRegression(C=0.1, max_iter=200).fit(scaled[known], pair.labels[known])
    f = head.decision_function(scaled)
    scores = np.full((len(features), view.outputs), np.nan)
    unknown = np.setdiff1d(train, known)
    scores[unknown] = f[unknown, None] if f.ndim == 1 else f[unknown]
    return scores
