"""Columns from the space that received numbers span (known plaintext; Turgay et al. 2008).

Every exchange of a linear model tells X_b theta_t about the rows of a batch, for weights theta_t that move. The numbers
of T exchanges span part of the column space of X_b, and from T c >= rank(X_b) on all of it. The attacker takes the
space by singular values, for each batch, and of what it collected about the rows held out. The score is the share of
the variance of a raw column that lies inside it, the mean over columns, where most is received.

A column inside the space is known up to one linear map: as many known rows as dimensions and one more give it for all
other rows. The attacker fits that map too, on a few more and on many, and says how far off the other rows are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from securevfl.audit.attacks.base import ColumnAttack, Score
from securevfl.audit.recording.column_numbers import ColumnNumbers, received
from securevfl.audit.recording.party_recording import Recording
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.base.arrays import Floats
from securevfl.disclosure.column_recovery import NEARLY_ALL

INSIDE = 0.99  # share of a column from which it is called inside
FLOOR = 1e-11  # of the largest singular value; below is rounding
SPARE = 3  # known rows beyond the dimensions, where the sum is exact
MANY = 5  # known rows for each dimension, where it is not


class ColumnSpace(ColumnAttack):
    name = "column_space"
    paper = "Turgay et al. 2008, disclosure risks of distance preserving data transformations (known samples)"
    measures = "share of the variance of a column inside the space of the numbers received, mean over columns"
    leak_threshold = NEARLY_ALL

    def score(self, pair: RealIdealPair) -> Score:
        real, ideal = (_worst(pair, tape) for tape in (pair.evaluated_run[1], pair.ideal_run[1]))
        return Score(real[0], ideal[0], real[1], real[2])


def by_learner(pair: RealIdealPair, tape: Recording) -> Iterable[list[ColumnNumbers]]:
    """Group what was received by who learned it and about whom."""
    groups: dict[tuple[str, tuple[str, ...]], list[ColumnNumbers]] = defaultdict(list)
    for batch in received(pair, tape):
        groups[batch.learner, batch.about].append(batch)
    return groups.values()


def _worst(pair: RealIdealPair, tape: Recording) -> tuple[float, float, str]:
    """Mean share and the share of a space of as many dimensions without relation, where most is found; in words."""
    shares_found: list[tuple[float, float]] = []
    said: list[str] = []
    for batches in by_learner(pair, tape):
        inside = [shares(batch.truth, space(batch)) for batch in batches]
        most = int(np.argmax([np.nanmean(share) for share in inside]))
        basis, batch = space(batches[most]), batches[most]
        shares_found.append((float(np.nanmean(inside[most])), basis.shape[1] / max(1, len(batch.rows) - 1)))
        said.append(_describe(batch, basis, inside[most]))
    return *max(shares_found), "; ".join(said)


def _describe(batch: ColumnNumbers, basis: Floats, share: Floats) -> str:
    named = [name for name, part in zip(batch.names, share, strict=True) if part >= INSIDE]
    whose = f"{batch.learner} about {', '.join(batch.about)}"
    if not named:
        return f"{whose}: no column within"
    said = [f"{whose}: {len(named)} of {len(share)} columns within ({', '.join(named)})"]
    said += [
        f"{known} known rows give them to {recovery(batch, basis, known):.0e} of their deviation"
        for known in (basis.shape[1] + SPARE, MANY * basis.shape[1])
        if known < len(batch.rows)
    ]
    return "; ".join(said)


def space(batch: ColumnNumbers) -> Floats:
    """Orthonormal basis (n x r) of the centred numbers: of as many dimensions as they can have, without rounding."""
    centred = batch.numbers - batch.numbers.mean(axis=0)
    U, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    most = U[:, : batch.dimensions]
    return most[:, (sizes > FLOOR * max(sizes.max(initial=0.0), 1e-300))[: batch.dimensions]]


def shares(truth: Floats, basis: Floats) -> Floats:
    """Share of the variance of each column of `truth` (n x d) inside the space of the basis; NaN for constant ones."""
    centred = truth - truth.mean(axis=0)
    variance = (centred**2).sum(axis=0)
    inside = ((basis.T @ centred) ** 2).sum(axis=0)
    return np.divide(inside, variance, out=np.full(len(variance), np.nan), where=variance > 1e-20)


def recovery(batch: ColumnNumbers, basis: Floats, known: int) -> float:
    """Return the largest error, in standard deviations, of a column inside, on the rows that are not known."""
    inside = batch.truth[:, shares(batch.truth, basis) >= INSIDE]
    design = np.column_stack([basis, np.ones(len(basis))])
    chosen = np.random.default_rng(0).permutation(len(basis))
    given, hidden = chosen[:known], chosen[known:]
    guess = design[hidden] @ np.linalg.lstsq(design[given], inside[given])[0]
    return float(np.sqrt(((guess - inside[hidden]) ** 2).mean(axis=0) / inside.var(axis=0)).max())
