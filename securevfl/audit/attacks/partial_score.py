"""Labels ranked by a party's contribution to the final score (Fu et al. 2022, passive label inference, without labels).

A passive party (without labels) ends with its weights theta_k, because it needs them to predict. Its contribution to
the score, X_k theta_k, shows what its columns X_k reveal about the label, as they were fitted with the help of all
labels. So do the outputs of its local network. The attack needs no message beyond those of the training and no known
label, since the model fixes the sign. The attacker on the ideal view has the same weights.
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
from securevfl.families.facts import RunFacts
from securevfl.job import Job
from securevfl.models.block import BlockModel


class PartialScore(LabelAttack):
    """Ranks rows by the party's contribution to the score."""

    name = "partial_score"
    paper = "Fu et al. 2022, label inference attacks against vertical federated learning"
    requirements = (
        CLASSIFICATION,
        (
            lambda job: job.model.by_column or (isinstance(job.model, BlockModel) and not job.model.separates_outputs),
            "no party ends with a part of the score",
        ),
    )

    def target_hidden(self, job: Job) -> bool:
        """Return False on secret shares, because the real and the ideal score then differ by chance.

        A party's share of its weights is a random direction of its columns, which ranks labels well or badly by chance.
        """
        return job.protocol.family is None and super().target_hidden(job)

    def remedy(self, job: Job, known: RunFacts, attacker: str) -> str:
        """Return the remedy, or the reason why there is none, for this job's protocol family."""
        if job.protocol.family is not None:
            return "none needed: the party's share of its weights is random, and the mean AUC over runs is 0.5"
        return "none: the party needs these weights to predict; give it no columns that correlate with the label"

    def guess(self, view: PartyView, pair: RealIdealPair) -> Floats:
        """Score rows by X_k theta_k, or by the final outputs of the party's network."""
        if not pair.job.model.by_column:
            return final_outputs(view)
        part: Floats = view.X @ view.theta
        return part if np.any(part) else np.full_like(part, np.nan)


def final_outputs(view: PartyView) -> Floats:
    """Return the party's most recent output (m, c) for each row; NaN for rows without one."""
    outputs = np.full((len(view.X), view.outputs), np.nan)
    for values in view.sums:
        outputs[view.rows[values.index]] = values.values
    return outputs
