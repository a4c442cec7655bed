"""Labels of rows that stand alone in the attacker's columns (leverage; Hoaglin and Welsch 1978).

Where a row has leverage h_ii near 1 in its batch, as a row with a value that no other row of the batch has, one of the
opened equations is nearly g_i itself. The attacker reads the sign of its least-norm solution on those rows alone. This
is in the declared output; `explain` counts the rows.
"""

from __future__ import annotations

import numpy as np

from securevfl.audit.attacks.base import BY_COLUMN, NUMBERS, SINGLE, Attack, By, Score, mean_by_row
from securevfl.audit.recording.views import View, Worlds, least_norm
from securevfl.disclosure.leverage import ALONE, leverage
from securevfl.job import Job
from securevfl.methods.base import Known


class RareValues(Attack):
    name = "rare_values"
    paper = "Hoaglin and Welsch 1978, the hat matrix in regression and ANOVA"
    measures = "share of right labels among the attacker's rows of leverage above 0.9; chance where it has none"
    by = By.EACH

    def why_not(self, job: Job) -> str:
        if not job.model.loss.classifies:
            return NUMBERS
        if not job.model.by_column:
            return BY_COLUMN
        return "" if job.model.loss.single else SINGLE

    def remedy(self, job: Job, known: Known, attacker: str) -> str:
        return "drop or group values that stand alone in a batch, or larger batches"

    def score(self, worlds: Worlds) -> Score:
        view = worlds.real()
        lonely = lonely_rows(view)
        share = worlds.labels[lonely].mean() if len(lonely) else 0.5
        chance = float(max(share, 1 - share))
        if not len(lonely):
            return Score(chance, chance, chance)
        noise = float(np.sqrt(chance * (1 - chance) / len(lonely)))
        detail = f"{len(lonely)} of {len(view.X)} rows; of a single one no figure is beyond chance, and it is opened"
        real, ideal = _right(view, worlds, lonely), _right(worlds.ideal(), worlds, lonely)
        return Score(real, ideal, chance, detail, noise)


def lonely_rows(view: View) -> np.ndarray:
    """Rows of high leverage in a batch of the view."""
    alone = [view.rows_of(opened)[leverage(opened.J) > ALONE] for opened in view.openings]
    return np.unique(np.concatenate([np.empty(0, np.intp), *alone]))


def _right(view: View, worlds: Worlds, rows: np.ndarray) -> float:
    first: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for opened in view.openings:
        first.setdefault(opened.index, (view.rows_of(opened), least_norm(opened.J.T, opened.gradient)))
    g = mean_by_row(list(first.values()), len(view.X), view.outputs)
    return float(np.mean((g[rows, 0] < 0) == (worlds.labels[rows] == 1)))
