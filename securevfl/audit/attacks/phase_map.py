"""Columns from summed phases by a linear map learned on a few known rows (against random features; known plaintext).

Private frequencies leave one thing: where phases stay within half a turn they are a linear image of the others'
columns. An attacker that knows the columns of more rows than there are columns fits the map back and applies it to
all rows. It is in the declared output of FDSKL, whatever the sum, and `explain` says so.
"""

from __future__ import annotations

import numpy as np

from securevfl.audit.attacks.phase_attack import PhaseAttack, explained, first_exchange
from securevfl.audit.recording.party_view import PartyView
from securevfl.audit.recording.real_ideal_pair import RealIdealPair


class PhaseMap(PhaseAttack):
    name = "phase_map"
    paper = "Turgay et al. 2008, disclosure risks of distance preserving data transformations (known samples)"
    measures = "share of the variance of the others' columns that is found, with a few rows known"

    def share_of_columns(self, view: PartyView, pair: RealIdealPair) -> float:
        rows, u, _ = first_exchange(view, pair)
        X = np.hstack([pair.real(party.name).X for party in pair.passives])[rows]
        known = min(len(rows) // 2, max(8, 3 * X.shape[1]))
        design = np.column_stack([u, np.ones(len(u))])
        back = np.linalg.lstsq(design[:known], X[:known])[0]
        return explained(design[known:] @ back, X[known:])
