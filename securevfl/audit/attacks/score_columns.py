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
from securevfl.disclosure.column_recovery import NEARLY_ALL
from securevfl.disclosure.score_reading import MAX_KNOWN_ROWS, added_by_column


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
