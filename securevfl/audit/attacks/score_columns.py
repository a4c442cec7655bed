"""Columns from scores of new rows, with a few known rows (known-sample attack; Turgay et al. 2008).

A score f = X_A theta_A + X_B theta_B depends on the columns X_A of the requesting party A and X_B of another party B,
with weights theta. So it is one number about a row of X_B for each output and each model. A fits a column of B on the
rows that it knows, by its own columns and the scores, and predicts the column on all other rows. If B has one column,
one score determines it; d outputs determine d columns; and one score partly determines a column that has most of the
weight. If A keeps its columns constant, only X_B theta_B varies. The attack's score is the share of the variance of one
column, on the unknown rows, that the scores explain in addition to A's columns, for the most exposed column.
"""

from __future__ import annotations

import numpy as np

from securevfl.audit.attacks.base import Score
from securevfl.audit.attacks.new_row_scores import ScoresAttack, query_scores
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.base.arrays import Floats
from securevfl.disclosure.column_recovery import NEARLY_ALL

MAX_KNOWN_ROWS = 200
"""Number of known rows at most; no more than half of the queried rows are known either."""


class ScoreColumns(ScoresAttack):
    """Predicts single columns of other parties from scores."""

    name = "score_columns"
    paper = "Turgay et al. 2008, disclosure risks of distance preserving data transformations (known samples)"
    measures = "share of one column of another party that scores of new rows add to the requester's, some rows known"
    leak_threshold = NEARLY_ALL

    def score(self, pair: RealIdealPair) -> Score:
        """Return the largest share of a column's variance that scores explain beyond the requester's columns.

        The requester scores rows with its real columns, and again with constant ones.
        """
        queried, best = query_scores(pair), (0.0, "")
        known = max(1, min(MAX_KNOWN_ROWS, len(queried.rows) // 2))
        for state, scores in (("real", queried.scores), ("constant", queried.constant_scores)):
            for name, (X, columns) in queried.other_columns.items():
                shares = added_by_column(queried.requester_columns, scores, X, known)
                worst = int(np.argmax(shares))
                detail = (
                    f"{queried.requester} with {known} known rows and its columns {state}: "
                    f"column {columns[worst]} of {name}"
                )
                best = max(best, (float(shares[worst]), detail))
        return Score(best[0], best[0], 0.0, best[1], noise=1.0 / known)


def added_by_column(requester_columns: Floats, scores: Floats, X: Floats, known: int) -> Floats:
    """Return the share (d,) of each column's variance that scores explain beyond the requester's columns.

    Only rows that the requester does not know count.

    Args:
        requester_columns: the requester's columns (m, k).
        scores: the scores (m, c).
        X: the columns (m, d) to predict.
        known: number of known rows, the first ones.

    Returns:
        Shares of the variance, between 0 and 1.
    """
    ones = np.ones((len(X), 1))
    designs = ((ones, requester_columns), (ones, requester_columns, scores))
    without, with_scores = (_unexplained(np.hstack(design), X, known) for design in designs)
    share: Floats = np.zeros(X.shape[1])
    np.divide(without - with_scores, without, out=share, where=without > 1e-12)
    return share.clip(0.0, 1.0)


def _unexplained(design: Floats, X: Floats, known: int) -> Floats:
    """Return the share (d,) of each column's variance on the unknown rows that a fit on the known rows misses."""
    deviation = design.std(axis=0)
    scaled = np.where(deviation > 0, (design - design.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0), design)
    fit = np.linalg.lstsq(scaled[:known], X[:known])[0]
    unknown = X[known:]
    error = ((scaled[known:] @ fit - unknown) ** 2).mean(axis=0)
    variance = np.maximum(unknown.var(axis=0), 1e-300)
    return np.minimum(error, ((unknown - X[:known].mean(axis=0)) ** 2).mean(axis=0)) / variance
