"""Labels ranked by scores that a party makes itself: from its own network and the vector that moments tell.

Where transfer learning is `linearised`, the party with labels shows Phi^T Phi of every exchange, which is Phi but for
its sign (`securevfl.methods.transfer.exchange`). Phi u_j is the score of row j, and u_j is the attacker's own: it ranks
its rows by what the finished model says of them, without a request for a score. The ideal attacker was shown none.
"""

from __future__ import annotations

import numpy as np

from securevfl.audit.attacks.base import NUMBERS, LabelAttack
from securevfl.audit.recording.views import View, Worlds
from securevfl.base.arrays import Floats
from securevfl.job import Job
from securevfl.methods.base import Known
from securevfl.methods.transfer.exchange import SecondMoments
from securevfl.models.taylor_steps import whole
from securevfl.models.transfer import Transfer


class OwnScores(LabelAttack):
    name = "own_scores"
    paper = "Fu et al. 2022, label inference; the first singular vector of what is shown"

    def why_not(self, job: Job) -> str:
        if not job.model.loss.classifies:
            return NUMBERS
        shown = isinstance(job.model, Transfer) and job.model.moments(job.optimizer.steps)
        return "" if shown else "no moments are shown in this job"

    def hidden(self, job: Job) -> bool:
        """Moments are shown in the clear, and declared."""
        return False

    def remedy(self, job: Job, known: Known, attacker: str) -> str:
        return "linearised = false, where each local step opens a gradient in place of the moments"

    def guess(self, view: View, worlds: Worlds) -> Floats:
        model = worlds.job.model
        shown = [each.message for each in view.receipts if isinstance(each.message, SecondMoments)]
        if not isinstance(model, Transfer) or not shown or shown[-1].upper.size != model.units * (model.units + 1) // 2:
            return np.full((len(view.X), 1), np.nan)
        phi = np.linalg.eigh(whole(np.asarray(shown[-1].upper, np.float64), model.units))[1][:, -1]
        network = model.build(view.X.shape[1], view.theta)
        scores: Floats = network.forward(view.X) @ phi
        return scores[:, None]
