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
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from securevfl.audit.attacks.base import ColumnAttack, Score
from securevfl.audit.attacks.opened_gradients import reduce
from securevfl.audit.recording.views import Received, Tape, Worlds, received
from securevfl.base.arrays import Floats
from securevfl.data.schedule import Rows
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


def by_learner(worlds: Worlds, tape: Tape) -> Iterable[list[Received]]:
    """Group what was received by who learned it and about whom."""
    groups: dict[tuple[str, tuple[str, ...]], list[Received]] = defaultdict(list)
    for batch in received(worlds, tape):
        groups[batch.learner, batch.about].append(batch)
    return groups.values()


def _worst(worlds: Worlds, tape: Tape) -> tuple[float, float, str]:
    """Mean share and the share of a space of as many dimensions without relation, where most is found; in words."""
    shares_found: list[tuple[float, float]] = []
    said: list[str] = []
    for batches in by_learner(worlds, tape):
        inside = [shares(batch.truth, space(batch)) for batch in batches]
        most = int(np.argmax([np.nanmean(share) for share in inside]))
        basis, batch = space(batches[most]), batches[most]
        shares_found.append((float(np.nanmean(inside[most])), basis.shape[1] / max(1, len(batch.rows) - 1)))
        said.append(_describe(batch, basis, inside[most]))
    return *max(shares_found), "; ".join(said)


def _describe(batch: Received, basis: Floats, share: Floats) -> str:
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
    return most[:, (sizes > FLOOR * max(sizes.max(initial=0.0), 1e-300))[: batch.dimensions]]


def shares(truth: Floats, basis: Floats) -> Floats:
    """Share of the variance of each column of `truth` (n x d) inside the space of the basis; NaN for constant ones."""
    centred = truth - truth.mean(axis=0)
    variance = (centred**2).sum(axis=0)
    inside = ((basis.T @ centred) ** 2).sum(axis=0)
    return np.divide(inside, variance, out=np.full(len(variance), np.nan), where=variance > 1e-20)


def recovery(batch: Received, basis: Floats, known: int) -> float:
    """Return the largest error, in standard deviations, of a column inside, on the rows that are not known."""
    inside = batch.truth[:, shares(batch.truth, basis) >= INSIDE]
    design = np.column_stack([basis, np.ones(len(basis))])
    chosen = np.random.default_rng(0).permutation(len(basis))
    given, hidden = chosen[:known], chosen[known:]
    guess = design[hidden] @ np.linalg.lstsq(design[given], inside[given])[0]
    return float(np.sqrt(((guess - inside[hidden]) ** 2).mean(axis=0) / inside.var(axis=0)).max())


# Columns of two values, read without any known row (Nguyen and Stern 1999; Coron and Gini 2020).
#
# A space that was received holds few vectors of two values but the columns themselves, and with the constant 1 it holds
# each column as 0 and 1. Two ways lead to them:
#
# *The space spans the columns.* A vector of the space is fixed by its values on r pivot rows. The attacker puts 0 and 1
# on these rows in every way, and keeps what is 0 or 1 on all other rows too. Beyond MOST_DIMENSIONS it starts from
# single rows and random vectors instead, and rounds and projects in turn.
#
# *It does not, as fewer numbers were received than there are columns.* Integers u with u . h = 0 for all numbers h
# received, to all their bits, are short only if u . x = 0 for every column x that takes few values (the hidden subset
# sum problem). LLL finds them for SOME rows at a time; what is orthogonal to them all is the space of the columns.
#
# The score is the share of a party's columns of two values that are read on all rows examined, 0 and 1 in either order.


Bits = NDArray[np.bool_]

EXAMINED = 3  # batches of a partition
_SPARE = 20  # rows beyond the dimensions, on which chance would not give 0 and 1
MOST_DIMENSIONS = 20  # that are tried in every way
TRIES = 500  # of rounding and projecting
CLOSE = 0.3  # to 0 or 1, on the rows that are looked at first
SCALE = 2.0**42  # of the numbers in a lattice: what LLL in double precision takes
MOST_COLUMNS = 40  # that a lattice is tried for


class BinaryColumns(ColumnAttack):
    name = "binary_columns"
    paper = "Nguyen and Stern 1999; Coron and Gini 2020, a polynomial-time algorithm for the hidden subset sum problem"
    measures = "share of a party's columns of two values that are read exactly, without a known row"
    beyond = 0.0

    def score(self, worlds: Worlds) -> Score:
        real, ideal = (_read(worlds, tape) for tape in (worlds.whole_run[1], worlds.ideal_run[1]))
        return Score(real[0], ideal[0], 0.0, real[1])


def _read(worlds: Worlds, tape: Tape) -> tuple[float, str]:
    """Return the largest share that a learner reads, and in words who reads which."""
    share, said = 0.0, []
    for first, *others in by_learner(worlds, tape):
        two, missed = set[str](), set[str]()
        for batch in (first, *others)[:EXAMINED]:
            varying = {name for name, column in zip(batch.names, batch.truth.T, strict=True) if _varies(column)}
            two |= varying
            missed |= varying - read(batch)
        named = [name for name in first.names if name in two - missed]
        if named:
            share = max(share, len(named) / len(two))
            what = f"{len(named)} of {len(two)} columns of {', '.join(first.about)}"
            said.append(f"{first.learner} reads {what}: {', '.join(named)}")
    return share, "; ".join(said)


def _varies(column: Floats) -> bool:
    return len(np.unique(column)) == 2


def read(batch: Received) -> set[str]:
    """Names of the columns of two values that are among those found in the batch, on the rows they were found on."""
    names = set()
    for rows, found in _candidates(batch):
        bits = {vector.tobytes() for vector in found} | {(~vector).tobytes() for vector in found}
        for name, column in zip(batch.names, batch.truth[rows].T, strict=True):
            if _varies(column) and (column == column.max()).tobytes() in bits:
                names.add(name)
    return names


def _candidates(batch: Received) -> Iterator[tuple[Rows, list[Bits]]]:
    """Vectors of two values (n,) and the rows that they are on: in the space of the numbers, and by a lattice."""
    numbers, columns = batch.numbers, batch.dimensions
    n, basis = len(numbers), space(batch)
    whole = np.column_stack([np.full(n, n**-0.5), basis])
    if whole.shape[1] + _SPARE <= n:
        yield np.arange(n), two_valued(whole)
    m = 2 * (columns + 1) + 8
    if basis.shape[1] < columns <= MOST_COLUMNS and m <= n:
        rows = np.sort(np.random.default_rng(0).permutation(n)[:m])
        for hidden in hidden_spaces(numbers[rows], columns):
            yield rows, two_valued(hidden)


def hidden_spaces(numbers: Floats, columns: int) -> Iterator[Floats]:
    """Orthonormal bases (m x r) of what is orthogonal to the short integers u that are orthogonal to the numbers
    (m x T c) and to 1: to as many as there must be, and to those before the largest step in length."""
    m = len(numbers)
    scaled = numbers / np.abs(numbers).max(axis=0).clip(1e-300)
    reduced = reduce(np.hstack([np.eye(m), np.rint(np.column_stack([np.ones(m), scaled]) * SCALE)]))
    lengths = np.linalg.norm(reduced, axis=1)
    order = np.argsort(lengths)
    least, most = m - columns - 1, int((lengths < SCALE / 2).sum())  # beyond, u . 1 or u . h is not 0
    steps = lengths[order][least:most] / lengths[order][least - 1 : most - 1]
    for short in {least, least + int(np.argmax(steps)) if len(steps) else least}:
        yield np.linalg.svd(reduced[order[:short], :m])[2][short:].T


def two_valued(basis: Floats) -> list[Bits]:
    """Vectors of 0 and 1 (n,), neither all 0 nor all 1, in the space of an orthonormal basis (n x r) that holds 1.

    One of each pair that complements each other.
    """
    from scipy.linalg import qr

    r = basis.shape[1]
    pivots = np.asarray(qr(basis.T, pivoting=True, mode="r")[1][:r], np.intp)
    by_pivots = basis @ np.linalg.inv(basis[pivots])
    starts = _every(r) if r <= MOST_DIMENSIONS else _settled(basis, pivots)
    found: dict[bytes, Bits] = {}
    check = np.random.default_rng(0).permutation(len(basis))[: 2 * r]
    for block in starts:
        values = block @ by_pivots[check].T
        near = (np.abs(values - (values > 0.5)) < CLOSE).all(axis=1)
        bits = block[near] @ by_pivots.T > 0.5
        again = (bits @ basis) @ basis.T > 0.5  # noise on the pivots is gone from it
        for vector in bits[(bits == again).all(axis=1)]:
            if vector.any() and not vector.all():
                found.setdefault(min(vector.tobytes(), (~vector).tobytes()), vector)
    return list(found.values())


def _every(r: int) -> Iterator[Floats]:
    """0 and 1 on r pivots, the first 0, in blocks (k x r)."""
    block = 2**12
    for first in range(0, 2 ** (r - 1), block):
        numbers = np.arange(first, min(first + block, 2 ** (r - 1)))
        yield ((numbers[:, None] << 1 >> np.arange(r)) & 1).astype(np.float64)


def _settled(basis: Floats, pivots: Rows) -> Iterator[Floats]:
    """0 and 1 on the pivots (1 x r) where rounding and projecting in turn come to rest."""
    generator = np.random.default_rng(0)
    n, r = basis.shape
    for attempt in range(TRIES):
        value = basis @ (basis[generator.integers(n)] if attempt % 2 else generator.normal(size=r))
        for _ in range(50):
            bits = value > (value.min() + value.max()) / 2
            value = basis @ (basis.T @ bits)
            if np.array_equal(value > 0.5, bits):
                yield bits[None, pivots].astype(np.float64)
                break
