"""Columns from scores of new rows, with a few rows known (known samples; Turgay et al. 2008).

A score f = X_A theta_A + X_B theta_B is one number about X_B for each output and each model. Whoever asks fits a column
of B, on the rows that it knows, by its own columns and the scores, and reads it on all others: a single column from the
first score, d columns from d outputs, in part a column that has most of the weight. Held constant, own columns leave
X_B theta_B alone. The score is the share of the variance of one column, beyond what own columns say of it, that the
scores add on the rows not known, where that is most.
"""

from __future__ import annotations

import numpy as np

from securevfl.audit.attacks.asked import Asked, asked, untold
from securevfl.audit.attacks.base import Attack, Score
from securevfl.audit.recording.views import Worlds
from securevfl.base.arrays import Floats
from securevfl.disclosure.exposure import NEARLY_ALL
from securevfl.job import Job
from securevfl.methods.base import Known

KNOWN = 200  # rows at most, and half of those that are asked about
SINGLE_OUT = "more columns, none with most of the weight; score fewer rows, under fewer models"


class ScoreColumns(Attack):
    name = "score_columns"
    paper = "Turgay et al. 2008, disclosure risks of distance preserving data transformations (known samples)"
    measures = "share of one column of another party that scores of new rows add to own columns, some rows known"
    beyond = NEARLY_ALL

    def why_not(self, job: Job) -> str:
        return untold(job)

    def who(self, job: Job, attacker: str, lead: str) -> str:
        return job.method.asker(job, lead)

    def remedy(self, job: Job, known: Known, attacker: str) -> str:
        return SINGLE_OUT

    def score(self, worlds: Worlds) -> Score:
        found = asked(worlds)
        share, said = most(found)
        return Score(share, share, 0.0, said, noise=1.0 / known_rows(found))


def known_rows(found: Asked) -> int:
    """How many rows the attacker knows."""
    return max(1, min(KNOWN, len(found.rows) // 2))


def most(found: Asked) -> tuple[float, str]:
    """Return the largest share of a column that scores add, and in words of whose column, asked how."""
    known, best = known_rows(found), (0.0, "")
    for how, scores in (("as they are", found.scores), ("held constant", found.constant)):
        for name, (X, columns) in found.others.items():
            shares = added(found.own, scores, X, known)
            at = int(np.argmax(shares))
            said = f"{found.learner} with {known} known rows and own columns {how}: {columns[at]} of {name}"
            best = max(best, (float(shares[at]), said))
    return best


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
    share: Floats = np.minimum(missed, ((rest - X[:known].mean(axis=0)) ** 2).mean(axis=0)) / spread
    return share
