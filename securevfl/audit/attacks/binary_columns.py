"""Binary columns, read from received sums without any known row (Nguyen and Stern 1999; Coron and Gini 2020).

In each exchange the attacker receives one number for each row: a linear combination of another party's columns. The
vector space of these numbers contains the binary columns, and few other vectors with only two values. Two methods:
- *The space contains all columns.* Its vectors are determined by their values on r pivot rows. The attacker tries all
  values 0 and 1 there, and selects vectors that are 0 or 1 on all other rows too. For r > MAX_DIMENSIONS it alternates
  between rounding and projecting to the space instead.
- *Fewer numbers per row than columns were received* (hidden subset sum problem). Lattice reduction (LLL) finds short
  integer vectors u orthogonal to all received numbers. Their orthogonal complement is the space of the columns.

The score is the share of a party's binary columns that are read on all examined rows, up to exchanging 0 and 1.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from securevfl.audit.attacks.base import Bits, ColumnAttack, Score
from securevfl.audit.attacks.column_space import by_learner, space
from securevfl.audit.attacks.lattice_reduction import reduce
from securevfl.audit.recording.column_numbers import ColumnNumbers
from securevfl.audit.recording.party_recording import Recording
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.base.arrays import Floats
from securevfl.data.schedule import Rows

EXAMINED_BATCHES = 3
"""Number of batches of a partition that are examined."""

_EXTRA_ROWS = 20
"""Required number of rows beyond the dimensions, so that a random vector is not 0 or 1 on all rows."""

MAX_DIMENSIONS = 20
"""Maximum number of dimensions for which all values on the pivot rows are tried."""

MAX_STARTS = 500
"""Number of starts of alternating rounding and projecting."""

ROUNDING_TOLERANCE = 0.3
"""Maximum distance from 0 or 1 on the rows that are checked first."""

LATTICE_SCALE = 2.0**42
"""Scale of the numbers in a lattice, the largest that LLL in double precision handles."""

MAX_LATTICE_COLUMNS = 40
"""Maximum number of columns for which a lattice is tried."""


class BinaryColumns(ColumnAttack):
    """Reads binary columns from the space of the received numbers."""

    name = "binary_columns"
    paper = "Nguyen and Stern 1999; Coron and Gini 2020, a polynomial-time algorithm for the hidden subset sum problem"
    measures = "share of a party's binary columns that are read exactly, without a known row"
    leak_threshold = 0.0

    def score(self, pair: RealIdealPair) -> Score:
        """Return the largest share of binary columns that a party reads."""
        real, ideal = (_share_read(pair, recording) for recording in (pair.evaluated_run[1], pair.ideal_run[1]))
        return Score(real[0], ideal[0], 0.0, real[1])


def _share_read(pair: RealIdealPair, recording: Recording) -> tuple[float, str]:
    """Return the largest share of binary columns that one party reads, and a text that names all columns read."""
    share, details = 0.0, []
    for first, *others in by_learner(pair, recording):
        binary, missed = set[str](), set[str]()
        for batch in (first, *others)[:EXAMINED_BATCHES]:
            varying = {name for name, column in zip(batch.names, batch.truth.T, strict=True) if _is_binary(column)}
            binary |= varying
            missed |= varying - columns_read(batch)
        named = [name for name in first.names if name in binary - missed]
        if named:
            share = max(share, len(named) / len(binary))
            count = f"{len(named)} of {len(binary)} binary columns of {', '.join(first.about)}"
            details.append(f"{first.learner} reads {count}: {', '.join(named)}")
    return share, "; ".join(details)


def _is_binary(column: Floats) -> bool:
    return len(np.unique(column)) == 2


def columns_read(batch: ColumnNumbers) -> set[str]:
    """Return the names of the binary columns that equal a candidate vector on its rows."""
    names = set()
    for rows, vectors in _candidates(batch):
        bits = {vector.tobytes() for vector in vectors} | {(~vector).tobytes() for vector in vectors}
        for name, column in zip(batch.names, batch.truth[rows].T, strict=True):
            if _is_binary(column) and (column == column.max()).tobytes() in bits:
                names.add(name)
    return names


def _candidates(batch: ColumnNumbers) -> Iterator[tuple[Rows, list[Bits]]]:
    """Yield rows and binary vectors on these rows, from the space of the numbers and from a lattice."""
    numbers, columns = batch.numbers, batch.dimensions
    n, basis = len(numbers), space(batch)
    with_constant = np.column_stack([np.full(n, n**-0.5), basis])
    if with_constant.shape[1] + _EXTRA_ROWS <= n:
        yield np.arange(n), two_valued(with_constant)
    m = 2 * (columns + 1) + 8
    if basis.shape[1] < columns <= MAX_LATTICE_COLUMNS and m <= n:
        rows = np.sort(np.random.default_rng(0).permutation(n)[:m])
        for hidden in hidden_spaces(numbers[rows], columns):
            yield rows, two_valued(hidden)


def hidden_spaces(numbers: Floats, columns: int) -> Iterator[Floats]:
    """Yield orthonormal bases of the space that may contain the columns.

    Each basis spans the orthogonal complement of short integer vectors u that are orthogonal to the numbers and to the
    constant vector 1. The right number of vectors u is unknown. Two are tried: the smallest possible number, and the
    number before the largest jump in the sorted lengths of the vectors.

    Args:
        numbers: received numbers (m, T * c) about m rows, c for each of T exchanges.
        columns: number of columns.

    Yields:
        Bases (m, r).
    """
    m = len(numbers)
    scaled = numbers / np.abs(numbers).max(axis=0).clip(1e-300)
    reduced = reduce(np.hstack([np.eye(m), np.rint(np.column_stack([np.ones(m), scaled]) * LATTICE_SCALE)]))
    lengths = np.linalg.norm(reduced, axis=1)
    order = np.argsort(lengths)
    min_vectors, max_vectors = (
        m - columns - 1,
        int((lengths < LATTICE_SCALE / 2).sum()),
    )  # only shorter vectors u are certainly orthogonal to 1 and to the numbers
    steps = lengths[order][min_vectors:max_vectors] / lengths[order][min_vectors - 1 : max_vectors - 1]
    for short in {min_vectors, min_vectors + int(np.argmax(steps)) if len(steps) else min_vectors}:
        yield np.linalg.svd(reduced[order[:short], :m])[2][short:].T


def two_valued(basis: Floats) -> list[Bits]:
    """Return the vectors of zeros and ones (n,) in a space that also contains the constant vector 1.

    `basis` (n, r) is an orthonormal basis of the space. Constant vectors are left out, and so is one of each pair of
    complements.
    """
    from scipy.linalg import qr

    r = basis.shape[1]
    pivots = np.asarray(qr(basis.T, pivoting=True, mode="r")[1][:r], np.intp)
    by_pivots = basis @ np.linalg.inv(basis[pivots])
    starts = _all_pivot_values(r) if r <= MAX_DIMENSIONS else _fixed_points(basis, pivots)
    vectors: dict[bytes, Bits] = {}
    check = np.random.default_rng(0).permutation(len(basis))[: 2 * r]
    for block in starts:
        values = block @ by_pivots[check].T
        near = (np.abs(values - (values > 0.5)) < ROUNDING_TOLERANCE).all(axis=1)
        bits = block[near] @ by_pivots.T > 0.5
        projected = (bits @ basis) @ basis.T > 0.5  # projecting removes the noise in the values on the pivot rows
        for vector in bits[(bits == projected).all(axis=1)]:
            if vector.any() and not vector.all():
                vectors.setdefault(min(vector.tobytes(), (~vector).tobytes()), vector)
    return list(vectors.values())


def _all_pivot_values(r: int) -> Iterator[Floats]:
    """Yield all combinations of 0 and 1 on r pivot rows, with 0 on the first, in blocks (k, r)."""
    block = 2**12
    for first in range(0, 2 ** (r - 1), block):
        numbers = np.arange(first, min(first + block, 2 ** (r - 1)))
        yield ((numbers[:, None] << 1 >> np.arange(r)) & 1).astype(np.float64)


def _fixed_points(basis: Floats, pivots: Rows) -> Iterator[Floats]:
    """Search for vectors of 0 and 1 in the space, from random starts; yield their values on the pivot rows (1, r).

    Each start is rounded to 0 and 1 and projected to the space in turn, until rounding no longer changes it.
    """
    generator = np.random.default_rng(0)
    n, r = basis.shape
    for attempt in range(MAX_STARTS):
        value = basis @ (basis[generator.integers(n)] if attempt % 2 else generator.normal(size=r))
        for _ in range(50):
            bits = value > (value.min() + value.max()) / 2
            value = basis @ (basis.T @ bits)
            if np.array_equal(value > 0.5, bits):
                yield bits[None, pivots].astype(np.float64)
                break
