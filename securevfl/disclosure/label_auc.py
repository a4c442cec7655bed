"""How well opened gradients rank labels: the AUC that a party reaches if its columns are pure noise.

A passive party has d columns and no labels, and p = d c parameters for the c outputs of the model. In each step it
receives the gradient X^T g. X (n, d) are its columns of a batch, and g (n, c) are the residuals (the derivatives of the
loss by the outputs), which depend on the labels. These are p equations about n c numbers: a share s = p / (n c). The
least-norm solution ranks the labels of one batch with

    AUC = Phi(sqrt(2 s / (1 - s)))       Phi: distribution function of the normal distribution

Fixed batches give the same equations in every epoch. If rows are reshuffled, each epoch adds new equations, a share s.
The table in this file states the AUC for both cases. It was measured (tests/security/test_label_curve.py) with logistic
loss, batches of 256 rows, and an attacker with d columns of noise that solves all its equations by least squares.
Columns that correlate with the label disclose more, and an attack that knows the two possible values of g learns more
(`securevfl.audit.attacks.two_values`).
"""

from __future__ import annotations

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.normal_distribution import normal_cdf, normal_quantile

TABLE_SHARES = np.array([1, 2, 4, 8, 16, 32, 64, 128, 192, 240]) / 256
"""The shares s of the measured table."""

TABLE_EPOCHS = np.array([1, 2, 5, 10, 20, 40])
"""The numbers of epochs of the measured table."""

FIXED_AUC = np.array([0.530, 0.545, 0.565, 0.592, 0.638, 0.703, 0.795, 0.915, 0.992, 1.0])
"""The measured AUC for each share if batches are the same in every epoch."""

RESHUFFLED_AUC = np.array(
    [
        [0.530, 0.538, 0.559, 0.589, 0.624, 0.671],
        [0.545, 0.567, 0.603, 0.649, 0.699, 0.763],
        [0.565, 0.592, 0.650, 0.706, 0.784, 0.861],
        [0.592, 0.631, 0.705, 0.795, 0.895, 0.939],
        [0.638, 0.694, 0.807, 0.920, 0.976, 0.998],
        [0.703, 0.785, 0.940, 0.998, 1.0, 1.0],
        [0.795, 0.908, 1.0, 1.0, 1.0, 1.0],
        [0.915, 1.0, 1.0, 1.0, 1.0, 1.0],
        [0.992, 1.0, 1.0, 1.0, 1.0, 1.0],
        [1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
    ]
)
"""The measured AUC for each share (row) and number of epochs (column) if rows are reshuffled every epoch."""


def expected_label_auc(p: int, rows: int, outputs: int, epochs: int, reshuffle: bool) -> float:
    """Return the AUC (0.5 to 1) to which a party whose columns are noise can rank labels by its gradients.

    The table is interpolated in log(share), log(epochs) and Phi^-1(AUC). For shares below those of the table,
    Phi^-1(AUC) is proportional to the square root of the share. If there are more epochs than in the table, the share
    is increased in proportion.

    Args:
        p: number of parameters of the party.
        rows: number of rows of a batch.
        outputs: number of outputs c.
        epochs: number of epochs.
        reshuffle: True if rows are reshuffled every epoch.

    Returns:
        The AUC.
    """
    share = p / (rows * outputs)
    if share >= TABLE_SHARES[-1]:
        return 1.0
    if not reshuffle:
        return normal_cdf(_interpolate(_normal_scores(FIXED_AUC), share))
    share *= max(1.0, epochs / TABLE_EPOCHS[-1])
    bounded_share = min(share, float(TABLE_SHARES[-1]))
    by_epochs = [_interpolate(column, bounded_share) for column in _normal_scores(RESHUFFLED_AUC).T]
    return normal_cdf(float(np.interp(np.log(epochs), np.log(TABLE_EPOCHS), by_epochs)))


def smallest_batch(p: int, outputs: int, epochs: int, reshuffle: bool, limit: float) -> int:
    """Return the smallest batch size at which `expected_label_auc` is at most `limit`.

    Args:
        p: number of parameters of the party.
        outputs: number of outputs c.
        epochs: number of epochs.
        reshuffle: True if rows are reshuffled every epoch.
        limit: the AUC that is allowed; 0.5 < limit < 1.

    Returns:
        The number of rows.
    """
    low, high = 0, 1
    while expected_label_auc(p, high, outputs, epochs, reshuffle) > limit:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if expected_label_auc(p, middle, outputs, epochs, reshuffle) > limit:
            low = middle
        else:
            high = middle
    return high


def _normal_scores(auc: Floats) -> Floats:
    """Return Phi^-1(AUC) for an array of AUC values, element by element."""
    return normal_quantile(np.minimum(auc, 0.9999))


def _interpolate(normal_scores: Floats, share: float) -> float:
    """Return Phi^-1(AUC) at a share, interpolated in log(share) between the shares of the table."""
    if share <= TABLE_SHARES[0]:
        return float(normal_scores[0] * np.sqrt(share / TABLE_SHARES[0]))
    return float(np.interp(np.log(share), np.log(TABLE_SHARES), normal_scores))
