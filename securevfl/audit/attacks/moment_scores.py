"""Labels ranked by scores that a party computes itself, from its network and from disclosed second moments.

In transfer learning, Phi is the mean of label times representation, and Phi u_j is the score of row j with the
representation u_j. With `linearised`, the job discloses Phi^T Phi in every exchange, which determines Phi up to its
sign (`securevfl.families.transfer.transfer_model`). The attacker knows u_j. So it ranks its rows by the finished model
without requesting a score. The ideal view contains no moments.
"""

from __future__ import annotations

import numpy as np

from securevfl.audit.attacks.base import (
    CLASSIFICATION,
    LabelAttack,
    fixed_remedy,
)
from securevfl.audit.recording.party_view import PartyView
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.base.arrays import Floats
from securevfl.families.transfer.local_quadratic import symmetric_matrix
from securevfl.families.transfer.transfer_model import Transfer
from securevfl.families.transfer.two_way_exchange import SecondMoments
from securevfl.job import Job


class MomentScores(LabelAttack):
    """Ranks rows by the first eigenvector of the disclosed moments."""

    name = "moment_scores"
    paper = "Fu et al. 2022, label inference; the first eigenvector of the disclosed moments"
    requirements = (
        CLASSIFICATION,
        (
            lambda job: isinstance(job.model, Transfer) and job.model.moments(job.optimizer.steps) > 0,
            "the job discloses no moments",
        ),
    )

    def target_hidden(self, job: Job) -> bool:
        """Return False, since the consent sheet states that moments are sent in the clear."""
        return False

    remedy = fixed_remedy("linearised = false, so that each local step discloses a gradient and no moments")

    def guess(self, view: PartyView, pair: RealIdealPair) -> Floats:
        """Score rows by the network's outputs times the first eigenvector of the moments that were disclosed last."""
        model = pair.job.model
        moments = [receipt.message for receipt in view.receipts if isinstance(receipt.message, SecondMoments)]
        triangle = model.units * (model.units + 1) // 2 if isinstance(model, Transfer) else 0
        if not isinstance(model, Transfer) or not moments or moments[-1].upper.size != triangle:
            return np.full((len(view.X), 1), np.nan)
        phi = np.linalg.eigh(symmetric_matrix(np.asarray(moments[-1].upper, np.float64), model.units))[1][:, -1]
        scores: Floats = model.build(view.X.shape[1], view.theta).forward(view.X) @ phi
        return scores[:, None]
