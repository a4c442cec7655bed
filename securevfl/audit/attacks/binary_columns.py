"""Columns of two values, read without any known row (Nguyen and Stern 1999; Coron and Gini 2020).

A space that was received holds few vectors of two values but the columns themselves, and with the constant 1 it holds
each column as 0 and 1. Two ways lead to them:

*The space spans the columns.* A vector of the space is fixed by its values on r pivot rows. The attacker puts 0 and 1
on these rows in every way, and keeps what is 0 or 1 on all other rows too. Beyond MOST_DIMENSIONS it starts from
single rows and random vectors instead, and rounds and projects in turn.

*It does not, as fewer numbers were received than there are columns.* Integers u with u . h = 0 for all numbers h
received, to all their bits, are short only if u . x = 0 for every column x that takes few values (the hidden subset
sum problem). LLL finds them for SOME rows at a time; what is orthogonal to them all is the space of the columns.

The score is the share of a party's columns of two values that are read on all rows examined, 0 and 1 in either order.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from securevfl.audit.attacks.base import ColumnAttack, Score
from securevfl.audit.attacks.column_space import by_learner, space
from securevfl.audit.attacks.lattice_reduction import reduce
from securevfl.audit.recording.column_numbers import ColumnNumbers
from securevfl.audit.recording.party_recording import Recording
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.base.arrays import Floats
from securevfl.data.schedule import Rows

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
    leak_threshold = 0.0

    def score(self, pair: RealIdealPair) -> Score:
        real, ideal = (_read(pair, tape) for tape in (pair.evaluated_run[1], pair.ideal_run[1]))
        return Score(real[0], ideal[0], 0.0, real[1])


def _read(pair: RealIdealPair, tape: Recording) -> tuple[float, str]:
    """Return the largest share that a learner reads, and in words who reads which."""
    share, said = 0.0, []
    for first, *others in by_learner(pair, tape):
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


def read(batch: ColumnNumbers) -> set[str]:
    """Names of the columns of two values that are among those found in the batch, on the rows they were found on."""
    names = set()
    for rows, found in _candidates(batch):
        bits = {vector.tobytes() for vector in found} | {(~vector).tobytes() for vector in found}
        for name, column in zip(batch.names, batch.truth[rows].T, strict=True):
            if _varies(column) and (column == column.max()).tobytes() in bits:
                names.add(name)
    return names


def _candidates(batch: ColumnNumbers) -> Iterator[tuple[Rows, list[Bits]]]:
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
