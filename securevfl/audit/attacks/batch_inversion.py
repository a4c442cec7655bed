"""All labels of a batch from its gradient."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from securevfl.audit.attacks.base import LabelAttack
from securevfl.audit.recording.party_view import PartyView, least_norm
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.base.arrays import Floats
from securevfl.data.schedule import Rows


class BatchInversion(LabelAttack):
    name = "batch_inversion"
    paper = "Zhu et al. 2019, deep leakage from gradients; Zou et al. 2022, batch label inference in VFL"

    def guess(self, view: PartyView, pair: RealIdealPair) -> Floats:
        seen: dict[bytes, tuple[Rows, Floats]] = {}
        for rows, A, b in view.equations():
            seen.setdefault(rows.tobytes(), (rows, -invert(A, b)))
        return view.mean_by_row(list(seen.values()))


def invert(A: Floats, b: Floats) -> Floats:
    """G (n x c) with entries in (-1/2, 1/2) for c = 1 that fits A (k x n) g = b (k x c)."""
    n = A.shape[1]
    least = least_norm(A, b)
    if b.shape[1] > 1 or np.linalg.matrix_rank(A) == n:
        return least
    scale = np.linalg.norm(A, 2) or 1.0
    M, v = A / scale, b[:, 0] / scale

    def misfit(u: Floats) -> tuple[float, Floats]:
        s = expit(u)
        miss = M @ (0.5 - s) - v
        return float(miss @ miss), -2.0 * (M.T @ miss) * s * (1 - s)

    start = -4.0 * least[:, 0]
    u = minimize(misfit, start, jac=True, method="L-BFGS-B", options={"maxiter": 100}).x
    return (0.5 - expit(u))[:, None]
