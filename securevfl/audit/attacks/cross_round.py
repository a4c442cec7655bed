"""Residuals from the decrypted gradients of all rounds together (the attack behind the leak `fresh_equations`).

Every decrypted gradient gives linear equations about the residuals g of its rows. Residuals change slowly, so the
attacker treats them as constant in time and solves all equations by least squares (LSQR). With one fixed partition into
batches, the equations of an epoch repeat those of the epoch before. With reshuffled rows, each epoch adds new
equations.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_array, vstack
from scipy.sparse.linalg import lsqr

from securevfl.audit.attacks.base import LabelAttack
from securevfl.audit.recording.party_view import PartyView
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.base.arrays import Floats
from securevfl.data.schedule import Rows


class CrossRound(LabelAttack):
    """Solves the equations of all rounds as one linear system."""

    name = "cross_round"
    paper = "gradients of several rounds as one linear system (after Hitaj et al. 2017)"

    def guess(self, view: PartyView, pair: RealIdealPair) -> Floats:
        """Score each row by minus its residual: rows of the second class have negative residuals, and score higher."""
        return -solve(view.equations(), len(view.X), view.outputs)


def solve(equations: list[tuple[Rows, Floats, Floats]], m: int, c: int) -> Floats:
    """Return the residuals that fit all equations best if they are the same in all rounds.

    Args:
        equations: for each decrypted gradient, the n rows of its batch, A (k, n) and A g (k, c).
        m: number of rows of the table.
        c: number of outputs.

    Returns:
        Residuals (m, c); NaN for rows that occur in no equation.
    """
    if not equations:
        return np.full((m, c), np.nan)
    blocks = []
    for rows, A, _ in equations:
        k, n = A.shape
        blocks.append(coo_array((A.ravel(), (np.repeat(range(k), n), np.tile(rows, k))), (k, m)))
    system, b = vstack(blocks).tocsr(), np.vstack([b for *_, b in equations])
    g = np.column_stack([lsqr(system, b[:, j], iter_lim=60)[0] for j in range(c)])
    g[np.setdiff1d(np.arange(m), np.concatenate([rows for rows, *_ in equations]))] = np.nan
    return g
