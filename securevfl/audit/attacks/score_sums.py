"""The other parties' contribution to each row's score, from scores with the requester's columns held constant.

The requesting party A chooses the values of its columns. If they are constant, the score f = X_A theta_A + X_B theta_B
equals X_B theta_B, the other parties' contribution, up to a constant and up to rounding. No row need be known. The
owner of the columns decides what their weighted sum is worth: it is the contribution of the columns to the model, which
a credit bureau, for example, sells.
"""

from __future__ import annotations

import numpy as np

from securevfl.audit.attacks.base import Score, fixed_remedy
from securevfl.audit.attacks.new_row_scores import SCORES_REMEDY, ScoresAttack, added_variance, query_scores
from securevfl.audit.recording.real_ideal_pair import RealIdealPair


class ScoreSums(ScoresAttack):
    """Reads the others' contribution to f from scores with constant columns."""

    name = "score_sums"
    paper = "outputs of a linear model as equations (Luo et al. 2021, feature inference attack on model predictions)"
    measures = (
        "share of the variance of the others' part of f that scores disclose, with the requester's columns constant"
    )
    remedy = fixed_remedy(f"coarser scores (score_bits), or none; {SCORES_REMEDY}")

    def score(self, pair: RealIdealPair) -> Score:
        """Return the share of the variance of the others' contribution that scores explain, averaged over outputs."""
        queried = query_scores(pair)
        shares = map(added_variance, queried.constant_scores.T, queried.other_part.T)
        share = float(np.mean(list(shares)))
        noise = 2 * float(np.sqrt(max(0.0, share * (1 - share)) / len(queried.rows)))
        return Score(share, share, 0.0, f"{queried.requester} requests scores of {len(queried.rows)} rows", noise=noise)
