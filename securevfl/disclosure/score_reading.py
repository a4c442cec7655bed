"""How much of one column can be read from scores of rows; the columns' owner finds out by attacking its own table.

A *score* is the output of a model for a row. The attack is that of the audit
(`securevfl.audit.attacks.score_columns`): the party that requests scores knows a column of the owner on some rows. It
regresses that column on its own columns and the scores, and predicts the column on all other rows (Turgay et al. 2008).
Before a training nobody knows the weights. If columns share a factor, a model tends to weigh that factor. One score
then reveals each of these columns, although a score has few bits in comparison with the whole row. The owner therefore
simulates the attack with scores along the direction in which its columns vary most together, the first principal
component.
"""

from __future__ import annotations

import time

import numpy as np

from securevfl.base.arrays import Floats

MAX_KNOWN_ROWS = 200
"""Maximum number of rows that the attacker is assumed to know; it knows at most half of the rows."""
MAX_ATTACK_SECONDS = 10.0
"""Processor seconds after which the search for the principal component ends; the latest approximation is used."""
_POWER_ITERATIONS = 100
_CONVERGED = 1e-4


def readable_shares(unit: Floats) -> Floats:
    """Return the share of the variance of each column that a score can reveal, by an attack on these rows.

    Args:
        unit: columns of mean 0 and standard deviation 1 (n, d), at most 4,096 rows of the table.

    Returns:
        Shares (d,) between 0 and 1; 0 if there are fewer than four rows.
    """
    n, d = unit.shape
    if n < 4 or not d:
        return np.zeros(d)
    scores = unit @ _main_direction(unit)
    known = max(1, min(MAX_KNOWN_ROWS, n // 2))
    return added_by_column(np.zeros((n, 0)), scores[:, None], unit, known)


def _main_direction(unit: Floats) -> Floats:
    """Return the first principal component (d,) by power iteration, started from the most correlated column."""
    R = unit.T @ unit
    direction = R[:, int(np.argmax((R**2).sum(axis=0)))].copy()
    started = time.process_time()
    for _ in range(_POWER_ITERATIONS):
        following = R @ direction
        following /= max(float(np.linalg.norm(following)), 1e-300)
        change = float(np.abs(following - direction).max())
        direction = following
        if change < _CONVERGED or time.process_time() - started > MAX_ATTACK_SECONDS:
            break
    return direction


def added_by_column(requester_columns: Floats, scores: Floats, X: Floats, known: int) -> Floats:
    """Return the share (d,) of each column's variance that scores explain in addition to the requester's own columns.

    The share is measured on the rows that the requester does not know.

    Args:
        requester_columns: the requester's columns (m, k).
        scores: the scores (m, c).
        X: the columns (m, d) to predict.
        known: number of rows whose X the requester knows: the first rows.

    Returns:
        Shares of the variance, between 0 and 1.
    """
    ones = np.ones((len(X), 1))
    designs = ((ones, requester_columns), (ones, requester_columns, scores))
    without, with_scores = (_unexplained(np.hstack(design), X, known) for design in designs)
    share: Floats = np.zeros(X.shape[1])
    np.divide(without - with_scores, without, out=share, where=without > 1e-12)
    return share.clip(0.0, 1.0)


def _unexplained(design: Floats, X: Floats, known: int) -> Floats:
    """Fit the columns X by `design` on the known rows; return the unexplained share (d,) of variance on the others."""
    deviation = design.std(axis=0)
    scaled = np.where(deviation > 0, (design - design.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0), design)
    fit = np.linalg.lstsq(scaled[:known], X[:known])[0]
    unknown = X[known:]
    error = ((scaled[known:] @ fit - unknown) ** 2).mean(axis=0)
    variance = np.maximum(unknown.var(axis=0), 1e-300)
    return np.minimum(error, ((unknown - X[:known].mean(axis=0)) ** 2).mean(axis=0)) / variance
