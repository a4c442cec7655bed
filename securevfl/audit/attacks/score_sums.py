"""The others' part of a score, from scores with own columns held constant: one number of what others hold, of each row.

Whoever asks chooses its own columns. Held constant, f = X_A theta_A + X_B theta_B is X_B theta_B up to a constant,
and what rounding leaves of it where scores are levels. No row need be known. What a sum of columns is worth is for
its owner to say: it is the part of the model that its columns are there for, and a credit bureau sells just that.
"""

from __future__ import annotations

import numpy as np

from securevfl.audit.attacks.base import Score, fixed_remedy
from securevfl.audit.attacks.new_row_scores import SINGLE_OUT, ScoresAttack, explained, query_scores
from securevfl.audit.recording.real_ideal_pair import RealIdealPair


class ScoreSums(ScoresAttack):
    name = "score_sums"
    paper = "outputs of a linear model as equations (Luo et al. 2021, feature inference attack on model predictions)"
    measures = "share of the variance of the others' part of f that is told by scores, own columns held constant"
    remedy = fixed_remedy(f"coarser scores (score_bits), or none; {SINGLE_OUT}")

    def score(self, pair: RealIdealPair) -> Score:
        told = query_scores(pair)
        share = float(np.mean(list(map(explained, told.constant.T, told.part.T))))
        noise = 2 * float(np.sqrt(max(0.0, share * (1 - share)) / len(told.rows)))
        return Score(share, share, 0.0, f"{told.learner} asks about {len(told.rows)} rows", noise=noise)
