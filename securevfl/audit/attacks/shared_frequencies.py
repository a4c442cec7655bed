"""Columns from summed phases, if all parties drew frequencies from one seed."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from securevfl.audit.attacks.phase_attack import PhaseAttack, explained, first_exchange, kernel
from securevfl.audit.recording.party_view import PartyView, least_norm
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.families.fdskl.random_features import RandomFrequencies


class SharedFrequencies(PhaseAttack):
    name: ClassVar[str] = "phases"
    paper = "Gu et al. 2020, federated doubly stochastic kernel learning for vertically partitioned data"
    measures = "share of the variance of the others' columns that is found"

    def share_of_columns(self, view: PartyView, pair: RealIdealPair) -> float:
        """Over the rows of the first exchange; the others' columns in the order of the parties."""
        others = np.hstack([pair.real(party.name).X for party in pair.passives])
        rows, u, blocks = first_exchange(view, pair)
        drawn = RandomFrequencies(kernel(pair), view.key, others.shape[1])
        w = np.hstack([drawn.w(view.name, k) for k in blocks])
        return explained(least_norm(w.T, u.T).T, others[rows])
