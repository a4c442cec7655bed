"""All labels of a batch from its gradient (Zhu et al. 2019, deep leakage from gradients; Zou et al. 2022 for VFL).

The attacker has equations A g = b about the residuals g (n, c) of a batch: A (k, n) is known, and b is a gradient that
was decrypted for it. If rank(A) = n, they determine g. Otherwise the attacker fits soft labels s in (0, 1). All weights
are zero in the first iteration, so g = p0 - s, where p0 is the known initial probability. L-BFGS minimises
|A (p0 - s) - b|^2, starting from s = p0.
"""

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
    """Inverts the first decrypted gradient of each batch."""

    name = "batch_inversion"
    paper = "Zhu et al. 2019, deep leakage from gradients; Zou et al. 2022, batch label inference in VFL"

    def guess(self, view: PartyView, pair: RealIdealPair) -> Floats:
        """Score the rows of each batch by its inverted gradient."""
        first: dict[bytes, tuple[Rows, Floats]] = {}
        for rows, A, b in view.equations():
            first.setdefault(rows.tobytes(), (rows, -invert(A, b)))
        return view.mean_by_row(list(first.values()))


def invert(A: Floats, b: Floats) -> Floats:
    """Return g (n, c) that fits A (k, n) g = b (k, c); for c = 1 its entries are in (-1/2, 1/2)."""
    n = A.shape[1]
    shortest = least_norm(A, b)
    if b.shape[1] > 1 or np.linalg.matrix_rank(A) == n:
        return shortest
    scale = np.linalg.norm(A, 2) or 1.0
    M, v = A / scale, b[:, 0] / scale

    def misfit(u: Floats) -> tuple[float, Floats]:
        s = expit(u)
        miss = M @ (0.5 - s) - v
        return float(miss @ miss), -2.0 * (M.T @ miss) * s * (1 - s)

    start = -4.0 * shortest[:, 0]
    u = minimize(misfit, start, jac=True, method="L-BFGS-B", options={"maxiter": 100}).x
    return (0.5 - expit(u))[:, None]
