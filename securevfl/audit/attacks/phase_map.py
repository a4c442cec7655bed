"""Columns from summed phases by a linear map that is fitted on a few known rows (known-plaintext attack).

A phase is x w modulo a turn, with columns x and frequencies w that only their owner knows. If phases stay within half a
turn, they are a linear image of the others' columns. An attacker that knows more rows than there are columns fits the
inverse map and applies it to all rows. The declared output of FDSKL allows this, whatever the sum; `explain` reports
it.
"""

from __future__ import annotations

import numpy as np

from securevfl.audit.attacks.phase_attack import PhaseAttack, explained_variance, first_exchange
from securevfl.audit.recording.party_view import PartyView
from securevfl.audit.recording.real_ideal_pair import RealIdealPair


class PhaseMap(PhaseAttack):
    """Fits the map from phases to columns on known rows."""

    name = "phase_map"
    paper = "Turgay et al. 2008, disclosure risks of distance preserving data transformations (known samples)"
    measures = "share of the variance of the others' columns that is recovered, with a few rows known"

    def share_of_columns(self, view: PartyView, pair: RealIdealPair) -> float:
        """Fit the map on known rows, and return the share of variance that it explains on the other rows."""
        rows, u, _ = first_exchange(view, pair)
        X = np.hstack([pair.real(party.name).X for party in pair.passives])[rows]
        known = min(len(rows) // 2, max(8, 3 * X.shape[1]))
        design = np.column_stack([u, np.ones(len(u))])
        inverse = np.linalg.lstsq(design[:known], X[:known])[0]
        return explained_variance(design[known:] @ inverse, X[known:])
