"""Label from the sign of the residual (Li et al. 2022, section 3; known since Liu et al. 2019's open FedBCD).

A residual that is read gives the label by the loss's own `undo`: for a logistic or hinge loss g < 0 exactly where
y = 1, for softmax the one negative entry of a row marks its class.
Under a sealed residual the attacker takes the least-norm g that fits its opened gradient.
"""

from __future__ import annotations

import numpy as np

from securevfl.audit.attacks.base import SINGLE, LabelAttack, known_rows, mean_by_row
from securevfl.audit.recording.views import View, Worlds
from securevfl.base.arrays import Floats
from securevfl.job import Job


class ResidualSign(LabelAttack):
    name = "residual_sign"
    paper = "Li et al. 2022, label leakage and protection in two-party split learning"

    def guess(self, view: View, worlds: Worlds) -> Floats:
        undo = worlds.job.loss.undo
        read = [(rows, np.nan_to_num(undo(g).targets)) for rows, g in view.residuals()]
        signs = read or [(rows, -np.sign(g)) for rows, g in view.estimates()]
        return mean_by_row(signs, len(view.X), view.outputs)


# Label from the norm of the residual (Li et al. 2022, section 3.1).
#
# Where one class is rare, a model that has learned anything predicts the frequent one with more confidence, so the rows
# of the rare class have the larger |g|. The attacker knows which class is rare. The score is best on unbalanced data.


class ResidualNorm(LabelAttack):
    name = "residual_norm"
    paper = "Li et al. 2022, label leakage and protection in two-party split learning"

    def why_not(self, job: Job) -> str:
        return super().why_not(job) or ("" if job.model.loss.single else SINGLE)

    def guess(self, view: View, worlds: Worlds) -> Floats:
        norms = [(rows, np.linalg.norm(g, axis=1, keepdims=True)) for rows, g in view.estimates()]
        rare = 1.0 if worlds.labels.mean() < 0.5 else -1.0
        return rare * mean_by_row(norms, len(view.X), 1)


# Label from the direction of the residual (Li et al. 2022, section 3.2).
#
# Residuals of one class point the same way. The attacker knows the label of a few rows, takes their mean residual as
# the direction of their class, and ranks all others by the cosine. It need not know the loss.


class ResidualDirection(LabelAttack):
    name = "residual_direction"
    paper = "Li et al. 2022, label leakage and protection in two-party split learning"

    def guess(self, view: View, worlds: Worlds) -> Floats:
        g = mean_by_row(view.estimates(), len(view.X), view.outputs)
        known = known_rows(worlds)
        known = known[np.isfinite(g[known]).all(axis=1)]
        classes = [1] if view.outputs == 1 else range(view.outputs)
        scores = np.column_stack([_towards(g, g[known], worlds.labels[known] == label) for label in classes])
        scores[known] = np.nan
        return scores


def _towards(g: Floats, examples: Floats, positive: np.ndarray) -> Floats:
    """Cosine with the mean residual of the positive examples less that of the others; for c = 1 the signed length."""
    if positive.all() or not positive.any():
        return np.full(len(g), np.nan)
    direction = examples[positive].mean(axis=0) - examples[~positive].mean(axis=0)
    length = np.linalg.norm(g, axis=1) if g.shape[1] > 1 else np.ones(len(g))
    cosine: Floats = g @ direction / np.maximum(length * np.linalg.norm(direction), 1e-300)
    return cosine


# Labels ranked by what a party knows of residuals that are shared: its own shares, and masked ones that came.
#
# A residual follows its label, so any part of it would: the mean, over all visits, of the words about a row is where a
# bias of masks shows. One keystream used again, or an entry opened without its pad, raises it. The order of the classes
# is taken from a few labels that the attacker knows.


class SharedResiduals(LabelAttack):
    name = "shared_residual"
    paper = "Li et al. 2022, label leakage from residuals, on shares of these"
    drawn = True

    def why_not(self, job: Job) -> str:
        if job.protocol.shares is None:
            return "no residual is shared in this job"
        return super().why_not(job) or ("" if job.model.loss.single else SINGLE)

    def guess(self, view: View, worlds: Worlds) -> Floats:
        found = [(view.rows[each.index], each.values) for each in view.shared]
        mean = mean_by_row(found, len(view.X), view.outputs)
        known = known_rows(worlds)
        slope = float(np.nan_to_num(mean[known, 0]) @ (worlds.labels[known] - worlds.labels[known].mean()))
        guess = mean if slope >= 0 else -mean
        guess[known] = np.nan
        return guess
