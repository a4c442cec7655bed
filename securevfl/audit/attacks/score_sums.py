"""The others' part of a score, from scores with own columns held constant: one number of what others hold, of each row.

Whoever asks chooses its own columns. Held constant, f = X_A theta_A + X_B theta_B is X_B theta_B up to a constant, and
what rounding leaves of it where scores are levels. No row need be known. What a sum of columns is worth is for its
owner to say: it is the part of the model that its columns are there for, and a credit bureau sells just that.
"""

from __future__ import annotations

import numpy as np

from securevfl.audit.attacks.asked import asked, untold
from securevfl.audit.attacks.base import Attack, Score
from securevfl.audit.attacks.score_columns import SINGLE_OUT
from securevfl.audit.recording.views import Worlds
from securevfl.base.arrays import Floats
from securevfl.job import Job
from securevfl.methods.base import Known


class ScoreSums(Attack):
    name = "score_sums"
    paper = "outputs of a linear model as equations (Luo et al. 2021, feature inference attack on model predictions)"
    measures = "share of the variance of the others' part of f that is told by scores, own columns held constant"

    def why_not(self, job: Job) -> str:
        return untold(job)

    def who(self, job: Job, attacker: str, lead: str) -> str:
        return job.method.asker(job, lead)

    def remedy(self, job: Job, known: Known, attacker: str) -> str:
        return f"coarser scores (score_bits), or none; {SINGLE_OUT}"

    def score(self, worlds: Worlds) -> Score:
        found = asked(worlds)
        share = float(
            np.mean([explained(told, part) for told, part in zip(found.constant.T, found.part.T, strict=True)])
        )
        said = f"{found.learner} asks about {len(found.rows)} rows"
        return Score(share, share, 0.0, said, noise=2 * float(np.sqrt(max(0.0, share * (1 - share)) / len(found.rows))))


def explained(told: Floats, part: Floats, *known: Floats) -> float:
    """Return the share of the variance of `part` (m,) that `told` (m,) adds to what is known (each m,), linearly."""
    ones = np.ones(len(part))
    whole = max(float(part.var()), 1e-300)
    left = [_missed(np.column_stack([ones, *known, *more]), part) for more in ((), (told,))]
    return min(1.0, max(0.0, (left[0] - left[1]) / whole))  # rounding may pass either end


def _missed(design: Floats, part: Floats) -> float:
    fit = np.linalg.lstsq(design, part)[0]
    return float(((design @ fit - part) ** 2).mean())
