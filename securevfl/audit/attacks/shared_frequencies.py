"""Columns from summed phases, if all parties drew their frequencies from one seed (against FDSKL, Gu et al. 2020).

A phase is x w modulo a turn, with columns x and random frequencies w. The paper draws the frequencies of all parties
from one seed. Then a worker (a party with labels) that learns the sum u of the others' M phases knows w, and has M
linear equations about their d columns in every row. If phases stay within half a turn, least squares solves them. In
this package each party draws frequencies from a private key; the attacker tries the frequencies of its own key. Masks
do not matter, because the sum is the worker's declared output.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from securevfl.audit.attacks.phase_attack import PhaseAttack, explained_variance, first_exchange, kernel
from securevfl.audit.recording.party_view import PartyView, least_norm
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.families.fdskl.random_features import RandomFrequencies


class SharedFrequencies(PhaseAttack):
    """Solves for columns with the frequencies of the attacker's own key."""

    name: ClassVar[str] = "phases"
    paper = "Gu et al. 2020, federated doubly stochastic kernel learning for vertically partitioned data"
    measures = "share of the variance of the others' columns that is recovered"

    def share_of_columns(self, view: PartyView, pair: RealIdealPair) -> float:
        """Solve for the others' columns on the rows of the first exchange; return the share of variance recovered."""
        others = np.hstack([pair.real(party.name).X for party in pair.passives])
        rows, u, blocks = first_exchange(view, pair)
        frequencies = RandomFrequencies(kernel(pair), view.key, others.shape[1])
        w = np.hstack([frequencies.w(view.name, k) for k in blocks])
        return explained_variance(least_norm(w.T, u.T).T, others[rows])
