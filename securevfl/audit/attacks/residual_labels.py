"""Labels from the sign, the norm and the direction of residuals (Li et al. 2022, sections 3, 3.1 and 3.2).

A residual g is the derivative of a row's loss by the model output. If residuals are encrypted, the attacker uses the
least-norm residual that fits the gradients that were decrypted for it.
"""

from __future__ import annotations

import numpy as np

from securevfl.audit.attacks.base import SINGLE_OUTPUT, LabelAttack, known_rows
from securevfl.audit.recording.party_view import PartyView
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.base.arrays import Floats


class ResidualSign(LabelAttack):
    """Labels from the sign of the residual, known since FedBCD (Liu et al. 2019) published residuals in the clear.

    Inverting the loss gives the label: with a logistic or hinge loss g < 0 exactly if y = 1; with softmax the one
    negative entry of a row marks its class.
    """

    name = "residual_sign"
    paper = "Li et al. 2022, label leakage and protection in two-party split learning"

    def guess(self, view: PartyView, pair: RealIdealPair) -> Floats:
        """Score each row by the mean target that the inverted loss gives."""
        invert = pair.job.loss.invert_residual
        inverted = [(rows, np.nan_to_num(invert(g).targets)) for rows, g in view.residuals()]
        signs = inverted or [(rows, -np.sign(g)) for rows, g in view.estimates()]
        return view.mean_by_row(signs)


class ResidualNorm(LabelAttack):
    """Labels from the norm of the residual, given which class is rare.

    A trained model predicts the frequent class with more confidence, so rows of the rare class have the larger |g|.
    The attack works best on unbalanced data.
    """

    name = "residual_norm"
    paper = "Li et al. 2022, label leakage and protection in two-party split learning"
    requirements = (*LabelAttack.requirements, SINGLE_OUTPUT)

    def guess(self, view: PartyView, pair: RealIdealPair) -> Floats:
        """Score each row by the mean norm of its residual."""
        norms = [(rows, np.linalg.norm(g, axis=1, keepdims=True)) for rows, g in view.estimates()]
        rare = 1.0 if pair.labels.mean() < 0.5 else -1.0
        return rare * view.mean_by_row(norms)


class ResidualDirection(LabelAttack):
    """Labels from the direction of the residual, given the labels of a few rows.

    Residuals of one class point the same way. The attacker takes the mean residual of the known rows as the direction
    of their class and ranks all other rows by the cosine. It need not know the loss.
    """

    name = "residual_direction"
    paper = "Li et al. 2022, label leakage and protection in two-party split learning"

    def guess(self, view: PartyView, pair: RealIdealPair) -> Floats:
        """Score each row by the cosine of its mean residual with the direction of each class."""
        g = view.mean_by_row(view.estimates())
        known = known_rows(pair)
        known = known[np.isfinite(g[known]).all(axis=1)]
        classes = [1] if view.outputs == 1 else range(view.outputs)
        scores = np.column_stack([_towards(g, g[known], pair.labels[known] == label) for label in classes])
        scores[known] = np.nan
        return scores


def _towards(g: Floats, examples: Floats, positive: np.ndarray) -> Floats:
    """Return how much each residual points towards the positive class.

    For c > 1 this is the cosine of g (m, c) with the difference of the classes' mean residuals, for c = 1 the signed g.
    """
    if positive.all() or not positive.any():
        return np.full(len(g), np.nan)
    direction = examples[positive].mean(axis=0) - examples[~positive].mean(axis=0)
    length = np.linalg.norm(g, axis=1) if g.shape[1] > 1 else np.ones(len(g))
    return g @ direction / np.maximum(length * np.linalg.norm(direction), 1e-300)
