"""Labels ranked by scores that a party makes itself: from its own network and the vector that moments tell.

Where transfer learning is `linearised`, the party with labels shows Phi^T Phi of every exchange, which is Phi but for
its sign (`securevfl.families.transfer.transfer_family`). Phi u_j is the score of row j, and u_j is the attacker's
own: it ranks its rows by what the finished model says of them, without a request for a score. The ideal attacker was
shown none.
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
    name = "moment_scores"
    paper = "Fu et al. 2022, label inference; the first singular vector of what is shown"
    requirements = (
        CLASSIFICATION,
        (
            lambda job: isinstance(job.model, Transfer) and job.model.moments(job.optimizer.steps) > 0,
            "no moments are shown in this job",
        ),
    )

    def target_hidden(self, job: Job) -> bool:
        """Moments are shown in the clear, and declared."""
        return False

    remedy = fixed_remedy("linearised = false, where each local step opens a gradient in place of the moments")

    def guess(self, view: PartyView, pair: RealIdealPair) -> Floats:
        model = pair.job.model
        shown = [receipt.message for receipt in view.receipts if isinstance(receipt.message, SecondMoments)]
        if not isinstance(model, Transfer) or not shown or shown[-1].upper.size != model.units * (model.units + 1) // 2:
            return np.full((len(view.X), 1), np.nan)
        phi = np.linalg.eigh(symmetric_matrix(np.asarray(shown[-1].upper, np.float64), model.units))[1][:, -1]
        scores: Floats = model.build(view.X.shape[1], view.theta).forward(view.X) @ phi
        return scores[:, None]
