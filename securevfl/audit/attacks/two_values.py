"""All labels of the first batch from one opened gradient, if residuals take two known values (lattice reduction).

If all weights start at zero, every row with label y = 1 has the residual a before the first step and every other row
has b, and both are known. Then a decrypted gradient X^T g equals X^T (b + (a - b) * s), where s in {0, 1}^n are the
labels. This is a subset-sum problem of p equations (one for each weight) with as many bits as the decrypted values are
precise. It has one solution once p times these bits exceeds n, far below p = n. Lattice reduction finds it while n is
small (Lagarias and Odlyzko 1985). The lattice is that of Coster et al. 1992, with one column for each equation.

In this package the active party starts from random weights (`securevfl.models.linear_block`). Residuals then take many
values, and the attack finds nothing. Its test sets the weights to zero, so that it succeeds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securevfl.audit.attacks.base import SINGLE_OUTPUT, LabelAttack
from securevfl.audit.attacks.lattice_reduction import reduce
from securevfl.audit.recording.party_view import PartyView, least_norm
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.base.arrays import Floats

MAX_REDUCED_ROWS = 64
"""Maximum batch size that LLL reduces within seconds; stronger lattice reduction could handle more rows."""

TRIED_PRECISION_BITS = (15, 20, 11)
"""Bits of precision to try."""

Integers = NDArray[np.int64]


class TwoValues(LabelAttack):
    """Solves the subset-sum problem of the first batch."""

    name = "two_values"
    paper = "Lagarias and Odlyzko 1985; Coster et al. 1992, improved low-density subset sum algorithms"
    measures = "AUC of the labels of the first batch"
    requirements = (
        *LabelAttack.requirements,
        SINGLE_OUTPUT,
        (
            lambda job: not isinstance(job.batch_size, str) and job.batch_size <= MAX_REDUCED_ROWS,
            f"batches have more than {MAX_REDUCED_ROWS} rows, too many for lattice reduction within seconds",
        ),
    )

    def guess(self, view: PartyView, pair: RealIdealPair) -> Floats:
        """Return the labels of the first batch, or its least-norm residuals if no solution is found."""
        scores = np.full((len(view.X), 1), np.nan)
        equations = view.equations()
        if equations:
            rows, A, b = equations[0]
            loss = pair.job.model.loss
            low, high = (float(loss.residual(np.zeros((1, 1)), np.array([[y]]))[0, 0]) for y in (-1.0, 1.0))
            s = subset(A, (b[:, 0] - A.sum(axis=1) * low) / (high - low))
            scores[rows] = -least_norm(A, b) if s is None else s[:, None]
        return scores


def subset(A: Floats, total: Floats) -> Integers | None:
    """Return s in {0, 1}^n with A (p, n) s = total (p,) up to a small error; None if no such s is found."""
    n = A.shape[1]
    if np.linalg.matrix_rank(A) == n:
        return np.rint(least_norm(A, total[:, None])[:, 0]).astype(np.int64)
    if n > MAX_REDUCED_ROWS:
        return None
    for bits in TRIED_PRECISION_BITS:
        # LLL finds the shortest sum of these rows, which is (2 s - 1, 1, nearly 0) for the solution s
        basis = np.zeros((n + 1, n + 1 + len(A)))
        basis[:n, :n] = 2 * np.eye(n)
        basis[n, :n], basis[n, n] = -1, 1
        basis[:n, n + 1 :], basis[n, n + 1 :] = np.rint(A.T * 2.0**bits), -np.rint(total * 2.0**bits)
        for row in reduce(basis):
            if abs(row[n]) == 1 and (np.abs(row[:n]) == 1).all():
                return ((row[:n] * row[n] + 1) / 2).astype(np.int64)
    return None
