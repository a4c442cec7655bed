"""Columns from scores of new rows, with a few rows known (known samples; Turgay et al. 2008).

A score f = X_A theta_A + X_B theta_B is one number about X_B for each output and each model. Whoever asks fits a
column of B, on the rows that it knows, by its own columns and the scores, and reads it on all others: a single column
from the first score, d columns from d outputs, in part a column that has most of the weight. Held constant, own
columns leave X_B theta_B alone. The score is the share of the variance of one column, beyond what own columns say of
it, that the scores add on the rows not known, where that is most.
"""

from __future__ import annotations

import numpy as np

from securevfl.audit.attacks.base import Score
from securevfl.audit.attacks.new_row_scores import ScoresAttack, query_scores
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.base.arrays import Floats
from securevfl.disclosure.column_recovery import NEARLY_ALL

KNOWN = 200  # rows at most, and half of those that are asked about


class ScoreColumns(ScoresAttack):
    name = "score_columns"
    paper = "Turgay et al. 2008, disclosure risks of distance preserving data transformations (known samples)"
    measures = "share of one column of another party that scores of new rows add to own columns, some rows known"
    leak_threshold = NEARLY_ALL

    def score(self, pair: RealIdealPair) -> Score:
        told, best = query_scores(pair), (0.0, "")
        known = max(1, min(KNOWN, len(told.rows) // 2))
        for how, scores in (("as they are", told.scores), ("held constant", told.constant)):
            for name, (X, columns) in told.others.items():
                shares = added(told.own, scores, X, known)
                at = int(np.argmax(shares))
                said = f"{told.learner} with {known} known rows and own columns {how}: {columns[at]} of {name}"
                best = max(best, (float(shares[at]), said))
        return Score(best[0], best[0], 0.0, best[1], noise=1.0 / known)


def added(own: Floats, scores: Floats, X: Floats, known: int) -> Floats:
    """Share (d,) of each column of X (m x d) that scores (m x c) add to own columns, on the rows beyond the known."""
    ones = np.ones((len(X), 1))
    without, with_scores = (_missed(np.hstack(design), X, known) for design in ((ones, own), (ones, own, scores)))
    share: Floats = np.zeros(X.shape[1])
    np.divide(without - with_scores, without, out=share, where=without > 1e-12)
    return share.clip(0.0, 1.0)


def _missed(design: Floats, X: Floats, known: int) -> Floats:
    """Return what a fit on the known rows leaves of each column's variance on the others (d,); at most all of it."""
    deviation = design.std(axis=0)
    scaled = np.where(deviation > 0, (design - design.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0), design)
    fit = np.linalg.lstsq(scaled[:known], X[:known])[0]
    rest = X[known:]
    missed = ((scaled[known:] @ fit - rest) ** 2).mean(axis=0)
    spread = np.maximum(rest.var(axis=0), 1e-300)
    return np.minimum(missed, ((rest - X[:known].mean(axis=0)) ** 2).mean(axis=0)) / spread
