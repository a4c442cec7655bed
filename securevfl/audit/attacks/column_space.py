"""Columns from the vector space that received numbers span (known plaintext; Turgay et al. 2008).

Every exchange of a linear model discloses X_b theta_t, c numbers about each row of a batch with columns X_b, for
weights theta_t that change. The numbers of T exchanges span a part of the column space of X_b, and all of it if
T * c >= rank(X_b). The attacker computes the space by a singular value decomposition, for each batch and for the
held-out rows. The score is the share of the variance of a column that lies inside the space, averaged over columns, for
the batch about which most was received.

A column inside the space is known up to one linear map. If the attacker knows the column on one row more than the space
has dimensions, it can compute the map, and so the column on all other rows. The attacker fits that map on a few and on
many known rows and reports the error on the other rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from securevfl.audit.attacks.base import ColumnAttack, Score
from securevfl.audit.recording.column_numbers import ColumnNumbers, column_numbers
from securevfl.audit.recording.party_recording import Recording
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.base.arrays import Floats
from securevfl.disclosure.column_recovery import NEARLY_ALL

INSIDE = 0.99
"""Minimum share of a column's variance inside the space for which the column counts as inside."""

RELATIVE_FLOOR = 1e-11
"""Singular values below this share of the largest one are rounding errors."""

EXTRA_KNOWN_ROWS = 3
"""Number of known rows beyond the dimensions, if the sum is exact."""

KNOWN_PER_DIMENSION = 5
"""Number of known rows for each dimension, if the sum is not exact."""


class ColumnSpace(ColumnAttack):
    """Computes the share of the variance of columns inside the space that the received numbers span."""

    name = "column_space"
    paper = "Turgay et al. 2008, disclosure risks of distance preserving data transformations (known samples)"
    measures = "share of the variance of a column inside the space of the numbers received, mean over columns"
    leak_threshold = NEARLY_ALL

    def score(self, pair: RealIdealPair) -> Score:
        """Score the most exposed party by the mean share of variance inside the space.

        The score of chance is the share inside a random space of the same dimension.
        """
        real, ideal = (_largest_share(pair, recording) for recording in (pair.evaluated_run[1], pair.ideal_run[1]))
        return Score(real[0], ideal[0], real[1], real[2])


def by_learner(pair: RealIdealPair, recording: Recording) -> Iterable[list[ColumnNumbers]]:
    """Group received numbers by the party that learned them and the parties that they are about."""
    groups: dict[tuple[str, tuple[str, ...]], list[ColumnNumbers]] = defaultdict(list)
    for batch in column_numbers(pair, recording):
        groups[batch.learner, batch.about].append(batch)
    return groups.values()


def _largest_share(pair: RealIdealPair, recording: Recording) -> tuple[float, float, str]:
    """Return the mean share of variance inside the space for the most exposed party.

    The second result is the expected share inside a random space of the same dimension, the third text for the report.
    """
    shares: list[tuple[float, float]] = []
    details: list[str] = []
    for batches in by_learner(pair, recording):
        inside = [shares_inside(batch.truth, space(batch)) for batch in batches]
        largest = int(np.argmax([np.nanmean(share) for share in inside]))
        basis, batch = space(batches[largest]), batches[largest]
        shares.append((float(np.nanmean(inside[largest])), basis.shape[1] / max(1, len(batch.rows) - 1)))
        details.append(_describe(batch, basis, inside[largest]))
    return *max(shares), "; ".join(details)


def _describe(batch: ColumnNumbers, basis: Floats, share: Floats) -> str:
    named = [name for name, part in zip(batch.names, share, strict=True) if part >= INSIDE]
    whose = f"{batch.learner} about {', '.join(batch.about)}"
    if not named:
        return f"{whose}: no column inside"
    details = [f"{whose}: {len(named)} of {len(share)} columns inside ({', '.join(named)})"]
    details += [
        f"{known} known rows determine them to {recovery_error(batch, basis, known):.0e} standard deviations"
        for known in (basis.shape[1] + EXTRA_KNOWN_ROWS, KNOWN_PER_DIMENSION * basis.shape[1])
        if known < len(batch.rows)
    ]
    return "; ".join(details)


def space(batch: ColumnNumbers) -> Floats:
    """Return an orthonormal basis (n, r) of the centred numbers, without dimensions that are rounding errors."""
    centred = batch.numbers - batch.numbers.mean(axis=0)
    U, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    possible = U[:, : batch.dimensions]
    return possible[:, (sizes > RELATIVE_FLOOR * max(sizes.max(initial=0.0), 1e-300))[: batch.dimensions]]


def shares_inside(truth: Floats, basis: Floats) -> Floats:
    """Return the share of the variance of each column (n, d) inside the space; NaN for constant columns."""
    centred = truth - truth.mean(axis=0)
    variance = (centred**2).sum(axis=0)
    inside = ((basis.T @ centred) ** 2).sum(axis=0)
    return np.divide(inside, variance, out=np.full(len(variance), np.nan), where=variance > 1e-20)


def recovery_error(batch: ColumnNumbers, basis: Floats, known: int) -> float:
    """Predict the columns inside the space on the unknown rows, and return the largest error of a column.

    Args:
        batch: the received numbers.
        basis: basis of their space.
        known: number of known rows.

    Returns:
        The root mean square error of the least accurate column, in standard deviations of the column.
    """
    inside = batch.truth[:, shares_inside(batch.truth, basis) >= INSIDE]
    design = np.column_stack([basis, np.ones(len(basis))])
    order = np.random.default_rng(0).permutation(len(basis))
    known_rows, unknown = order[:known], order[known:]
    guess = design[unknown] @ np.linalg.lstsq(design[known_rows], inside[known_rows])[0]
    return float(np.sqrt(((guess - inside[unknown]) ** 2).mean(axis=0) / inside.var(axis=0)).max())
