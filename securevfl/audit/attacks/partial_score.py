"""Labels ranked by one's own part of the finished model (Fu et al. 2022, passive label inference, without the labels).

A passive party ends with its weights theta_k, in every mode, as it needs them to predict. X_k theta_k is what its
columns say about the label, fitted with the help of all labels; so are the outputs of a network of its own. No
message is needed beyond those that train, and no known label: the sign is the model's. The ideal attacker holds the
same weights.
"""

from __future__ import annotations

import numpy as np

from securevfl.audit.attacks.base import (
    CLASSIFICATION,
    LabelAttack,
)
from securevfl.audit.recording.party_view import PartyView
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.base.arrays import Floats
from securevfl.families.run_facts import RunFacts
from securevfl.job import Job
from securevfl.models.block import BlockModel


class PartialScore(LabelAttack):
    name = "partial_score"
    paper = "Fu et al. 2022, label inference attacks against vertical federated learning"
    requirements = (
        CLASSIFICATION,
        (
            lambda job: job.model.by_column or (isinstance(job.model, BlockModel) and not job.model.separates_outputs),
            "no party ends with a part of the score of its own",
        ),
    )

    def target_hidden(self, job: Job) -> bool:
        """Weights that are shared leave a party a random direction of its columns, which ranks labels well or badly, by
        chance: no single run can be held against another."""
        return job.protocol.family is None and super().target_hidden(job)

    def remedy(self, job: Job, known: RunFacts, attacker: str) -> str:
        if job.protocol.family is not None:
            return "none: its share of its weights is random; the mean over many runs is a half"
        return "none: the party needs these weights to predict; keep columns that go with the label from it"

    def guess(self, view: PartyView, pair: RealIdealPair) -> Floats:
        if not pair.job.model.by_column:
            return last_outputs(view)
        own: Floats = view.X @ view.theta
        return own if np.any(own) else np.full_like(own, np.nan)


def last_outputs(view: PartyView) -> Floats:
    """Return the outputs (m x c) of the party's own network when each row was last asked; NaN for rows never asked."""
    own = np.full((len(view.X), view.outputs), np.nan)
    for part in view.totals:
        own[view.rows[part.index]] = part.values
    return own
