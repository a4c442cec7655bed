"""Label from the sign of the residual (Li et al. 2022, section 3; known since Liu et al. 2019's open FedBCD).

A residual that is read gives the label by the loss's own `undo`: for a logistic or hinge loss g < 0 exactly where
y = 1, for softmax the one negative entry of a row marks its class.
Under a sealed residual the attacker takes the least-norm g that fits its opened gradient.
"""

from __future__ import annotations

import numpy as np

from securevfl.audit.attacks.base import SINGLE_OUTPUT, LabelAttack, known_rows
from securevfl.audit.recording.party_view import PartyView
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.base.arrays import Floats


class ResidualSign(LabelAttack):
    name = "residual_sign"
    paper = "Li et al. 2022, label leakage and protection in two-party split learning"

    def guess(self, view: PartyView, pair: RealIdealPair) -> Floats:
        undo = pair.job.loss.invert_residual
        read = [(rows, np.nan_to_num(undo(g).targets)) for rows, g in view.residuals()]
        signs = read or [(rows, -np.sign(g)) for rows, g in view.estimates()]
        return view.mean_by_row(signs)


# Label from the norm of the residual (Li et al. 2022, section 3.1).
#
# Where one class is rare, a model that has learned anything predicts the frequent one with more confidence, so the rows
# of the rare class have the larger |g|. The attacker knows which class is rare. The score is best on unbalanced data.


class ResidualNorm(LabelAttack):
    name = "residual_norm"
    paper = "Li et al. 2022, label leakage and protection in two-party split learning"
    requirements = (*LabelAttack.requirements, SINGLE_OUTPUT)

    def guess(self, view: PartyView, pair: RealIdealPair) -> Floats:
        norms = [(rows, np.linalg.norm(g, axis=1, keepdims=True)) for rows, g in view.estimates()]
        rare = 1.0 if pair.labels.mean() < 0.5 else -1.0
        return rare * view.mean_by_row(norms)


# Label from the direction of the residual (Li et al. 2022, section 3.2).
#
# Residuals of one class point the same way. The attacker knows the label of a few rows, takes their mean residual as
# the direction of their class, and ranks all others by the cosine. It need not know the loss.


class ResidualDirection(LabelAttack):
    name = "residual_direction"
    paper = "Li et al. 2022, label leakage and protection in two-party split learning"

    def guess(self, view: PartyView, pair: RealIdealPair) -> Floats:
        g = view.mean_by_row(view.estimates())
        known = known_rows(pair)
        known = known[np.isfinite(g[known]).all(axis=1)]
        classes = [1] if view.outputs == 1 else range(view.outputs)
        scores = np.column_stack([_towards(g, g[known], pair.labels[known] == label) for label in classes])
        scores[known] = np.nan
        return scores


def _towards(g: Floats, examples: Floats, positive: np.ndarray) -> Floats:
    """Cosine with the mean residual of the positive examples less that of the others; for c = 1 the signed length."""
    if positive.all() or not positive.any():
        return np.full(len(g), np.nan)
    direction = examples[positive].mean(axis=0) - examples[~positive].mean(axis=0)
    length = np.linalg.norm(g, axis=1) if g.shape[1] > 1 else np.ones(len(g))
    return g @ direction / np.maximum(length * np.linalg.norm(direction), 1e-300)
