"""Labels of rows that stand alone in the attacker's columns (leverage; Hoaglin and Welsch 1978).

Where a row has leverage h_ii near 1 in its batch, as a row with a value that no other row of the batch has, one of
the opened equations is nearly g_i itself. The attacker reads the sign of its least-norm solution on those rows alone.
This is in the declared output; `explain` counts the rows.
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
    name = "rare_values"
    paper = "Hoaglin and Welsch 1978, the hat matrix in regression and ANOVA"
    measures = "share of right labels among the attacker's rows of leverage above 0.9; chance where it has none"
    attacker_role = AttackerRole.PASSIVE
    requirements = (CLASSIFICATION, WEIGHT_PER_COLUMN, SINGLE_OUTPUT)
    remedy = fixed_remedy("drop or group values that stand alone in a batch, or larger batches")

    def score(self, pair: RealIdealPair) -> Score:
        view = pair.real()
        lonely = lonely_rows(view)
        share = pair.labels[lonely].mean() if len(lonely) else 0.5
        chance = float(max(share, 1 - share))
        if not len(lonely):
            return Score(chance, chance, chance)
        noise = float(np.sqrt(chance * (1 - chance) / len(lonely)))
        detail = f"{len(lonely)} of {len(view.X)} rows; of a single one no figure is beyond chance, and it is opened"
        real, ideal = _right(view, pair, lonely), _right(pair.ideal(), pair, lonely)
        return Score(real, ideal, chance, detail, noise)


def lonely_rows(view: PartyView) -> np.ndarray:
    """Rows of high leverage in a batch of the view."""
    alone = [view.rows_of(opened)[leverages(opened.J) > HIGH_LEVERAGE] for opened in view.opened_gradients]
    return np.unique(np.concatenate([np.empty(0, np.intp), *alone]))


def _right(view: PartyView, pair: RealIdealPair, rows: np.ndarray) -> float:
    first: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for opened in view.opened_gradients:
        first.setdefault(opened.index, (view.rows_of(opened), least_norm(opened.J.T, opened.gradient)))
    g = view.mean_by_row(list(first.values()))
    return float(np.mean((g[rows, 0] < 0) == (pair.labels[rows] == 1)))
