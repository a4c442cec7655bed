"""Columns from the space that received numbers span (known plaintext; Turgay et al. 2008).

Every exchange of a linear model tells X_b theta_t about the rows of a batch, for weights theta_t that move. The numbers
of T exchanges span part of the column space of X_b, and from T c >= rank(X_b) on all of it. The attacker takes the
space by singular values, for each batch, and of what it collected about the rows held out. The score is the share of
the variance of a raw column that lies inside it, the mean over columns, where most is received.

A column inside the space is known up to one linear map: as many known rows as dimensions and one more give it for all
other rows. The attacker fits that map too, on a few more and on many, and says how far off the other rows are.
"""

from __future__ import annotations

import numpy as np

from securevfl.audit.attacks.base import ColumnAttack, Score
from securevfl.audit.recording.received import Received, received
from securevfl.audit.recording.views import Tape, Worlds
from securevfl.base.arrays import Floats
from securevfl.disclosure.exposure import NEARLY_ALL

INSIDE = 0.99  # share of a column from which it is called inside
FLOOR = 1e-11  # of the largest singular value; below is rounding
SPARE = 3  # known rows beyond the dimensions, where the sum is exact
MANY = 5  # known rows for each dimension, where it is not


class ColumnSpace(ColumnAttack):
    name = "column_space"
    paper = "Turgay et al. 2008, disclosure risks of distance preserving data transformations (known samples)"
    measures = "share of the variance of a column inside the space of the numbers received, mean over columns"
    beyond = NEARLY_ALL

    def score(self, worlds: Worlds) -> Score:
        real, ideal = (_worst(worlds, tape) for tape in (worlds.whole_run[1], worlds.ideal_run[1]))
        return Score(real[0], ideal[0], real[1], real[2])


def _worst(worlds: Worlds, tape: Tape) -> tuple[float, float, str]:
    """Mean share and the share of a space of as many dimensions without relation, where most is found; in words."""
    found: list[tuple[float, float]] = []
    said: list[str] = []
    everything = received(worlds, tape)
    for learner, about in dict.fromkeys((each.learner, each.about) for each in everything):
        batches = [each for each in everything if (each.learner, each.about) == (learner, about)]
        inside = [shares(each.truth, space(each)) for each in batches]
        most = int(np.argmax([np.nanmean(share) for share in inside]))
        basis, batch = space(batches[most]), batches[most]
        chance = basis.shape[1] / max(1, len(batch.rows) - 1)
        found.append((float(np.nanmean(inside[most])), chance))
        said.append(_said(batch, basis, inside[most]))
    return *max(found), "; ".join(said)


def _said(batch: Received, basis: Floats, share: Floats) -> str:
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


def space(batch: Received) -> Floats:
    """Orthonormal basis (n x r) of the centred numbers: of as many dimensions as they can have, without rounding."""
    centred = batch.numbers - batch.numbers.mean(axis=0)
    U, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    most = U[:, : batch.dimensions]
    kept: Floats = most[:, (sizes > FLOOR * max(sizes.max(initial=0.0), 1e-300))[: batch.dimensions]]
    return kept


def shares(truth: Floats, basis: Floats) -> Floats:
    """Share of the variance of each column of `truth` (n x d) inside the space of the basis; NaN for constant ones."""
    centred = truth - truth.mean(axis=0)
    variance = (centred**2).sum(axis=0)
    inside = ((basis.T @ centred) ** 2).sum(axis=0)
    share: Floats = np.divide(inside, variance, out=np.full(len(variance), np.nan), where=variance > 1e-20)
    return share


def recovery(batch: Received, basis: Floats, known: int) -> float:
    """Return the largest error, in standard deviations, of a column inside, on the rows that are not known."""
    inside = batch.truth[:, shares(batch.truth, basis) >= INSIDE]
    design = np.column_stack([basis, np.ones(len(basis))])
    chosen = np.random.default_rng(0).permutation(len(basis))
    given, hidden = chosen[:known], chosen[known:]
    guess = design[hidden] @ np.linalg.lstsq(design[given], inside[given])[0]
    return float(np.sqrt(((guess - inside[hidden]) ** 2).mean(axis=0) / inside.var(axis=0)).max())
