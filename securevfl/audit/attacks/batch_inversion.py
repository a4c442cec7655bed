"""All labels of a batch from its gradient (Zhu et al. 2019, deep leakage from gradients; Zou et al. 2022 for VFL).

The equations that a view holds about one batch, A g = b, are solved outright where rank(A) reaches n. Otherwise the
attacker fits soft labels s in (0, 1): at the first visit all weights are zero, so g is p0 - s with p0 known, and
|A (p0 - s) - b|^2 is made small by L-BFGS from s = p0.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from securevfl.audit.attacks.base import LabelAttack, mean_by_row
from securevfl.audit.recording.views import View, Worlds, least_norm
from securevfl.base.arrays import Floats
from securevfl.data.schedule import Rows


class BatchInversion(LabelAttack):
    name = "batch_inversion"
    paper = "Zhu et al. 2019, deep leakage from gradients; Zou et al. 2022, batch label inference in VFL"

    def guess(self, view: View, worlds: Worlds) -> Floats:
        seen: dict[bytes, tuple[Rows, Floats]] = {}
        for rows, A, b in view.equations():
            seen.setdefault(rows.tobytes(), (rows, -invert(A, b)))
        return mean_by_row(list(seen.values()), len(view.X), view.outputs)


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
