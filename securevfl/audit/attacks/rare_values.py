"""Labels of rows that have rare values in the attacker's columns (leverage; Hoaglin and Welsch 1978).

If a row has a value that no other row of its batch has, its leverage (its diagonal entry of the hat matrix) is near 1.
Then one of the equations from a decrypted gradient is nearly the residual g_i of this row alone. The attacker takes the
sign of the least-norm solution on these rows alone. The declared output allows this; `explain` counts the rows.
"""

from __future__ import annotations

import numpy as np

from securevfl.audit.attacks.base import (
    CLASSIFICATION,
    SINGLE_OUTPUT,
    WEIGHT_PER_COLUMN,
    Attack,
    AttackerRole,
    Score,
    fixed_remedy,
)
from securevfl.audit.recording.party_view import PartyView, least_norm
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.disclosure.leverage import HIGH_LEVERAGE, leverages


class RareValues(Attack):
    """Labels of rows with high leverage, from the sign of the least-norm residual."""

    name = "rare_values"
    paper = "Hoaglin and Welsch 1978, the hat matrix in regression and ANOVA"
    measures = "share of correct labels among the attacker's rows of leverage above 0.9; chance if it has none"
    attacker_role = AttackerRole.PASSIVE
    requirements = (CLASSIFICATION, WEIGHT_PER_COLUMN, SINGLE_OUTPUT)
    remedy = fixed_remedy("drop or group values that occur once in a batch, or use larger batches")

    def score(self, pair: RealIdealPair) -> Score:
        """Return the share of correct labels; chance is the share of the more frequent class."""
        view = pair.real()
        lonely = lonely_rows(view)
        share = pair.labels[lonely].mean() if len(lonely) else 0.5
        chance = float(max(share, 1 - share))
        if not len(lonely):
            return Score(chance, chance, chance)
        noise = float(np.sqrt(chance * (1 - chance) / len(lonely)))
        detail = f"{len(lonely)} of {len(view.X)} rows, whose labels show (one row is too few to exceed chance)"
        real, ideal = _accuracy(view, pair, lonely), _accuracy(pair.ideal(), pair, lonely)
        return Score(real, ideal, chance, detail, noise)


def lonely_rows(view: PartyView) -> np.ndarray:
    """Return the rows whose leverage is high in one of the batches of the view."""
    alone = [view.rows_of(opened)[leverages(opened.J) > HIGH_LEVERAGE] for opened in view.opened_gradients]
    return np.unique(np.concatenate([np.empty(0, np.intp), *alone]))


def _accuracy(view: PartyView, pair: RealIdealPair, rows: np.ndarray) -> float:
    """Return the share of these rows whose label the sign of the least-norm residual predicts correctly."""
    first: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for opened in view.opened_gradients:
        first.setdefault(opened.index, (view.rows_of(opened), least_norm(opened.J.T, opened.gradient)))
    g = view.mean_by_row(list(first.values()))
    return float(np.mean((g[rows, 0] < 0) == (pair.labels[rows] == 1)))
