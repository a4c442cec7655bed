"""Label from the direction of the residual (Li et al. 2022, section 3.2).

Residuals of one class point the same way. The attacker knows the label of a few rows, takes their mean residual as the
direction of their class, and ranks all others by the cosine. It need not know the loss.
"""

from __future__ import annotations

import numpy as np

from securevfl.audit.attacks.base import LabelAttack, known_rows, mean_by_row
from securevfl.audit.recording.views import View, Worlds
from securevfl.base.arrays import Floats


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
