"""Random trees of one party's columns. Their leaves are the features for which weights are trained.

A tree asks `depth` questions of the form "is column c above the cut t?", the same ones in all nodes of a level. The
answers for a row are the bits of the number of the leaf that the row reaches. Columns and cuts are random and do not
depend on labels: extremely randomised trees (Geurts, Ernst and Wehenkel 2006) in the symmetric form of oblivious trees.
They are derived from a secret key of the party; other parties know only the number and depth of the trees.

    sources   the original columns, to which questions refer; the preparation made the prepared columns from them
    cuts      distinct quantiles of a column's training rows; a column with k cuts is drawn with weight log2(1 + k)^2
    missing   each question sends missing values to a random side
    texts     each category has a random rank, and questions compare the ranks of a text column with cuts

A party's columns are features too (`LinearFeatures`). These get a higher weight if every column has only two values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats, SerializableFields
from securevfl.crypto.prg import Prg
from securevfl.data.preparation import SourceColumn

Leaves = NDArray[np.uint8]
"""For each of m rows and each tree, the number of the leaf that the row reaches (m, trees)."""

MAX_TREE_DEPTH = 8
"""Maximum number of questions of a tree, because the number of a leaf is stored in 8 bits."""
MAX_BINS = 255
CHUNK_ROWS = 16_384
"""Number of rows whose leaves are computed at a time."""


def question_values(X: Floats, sources: Sequence[SourceColumn], orders: Sequence[Sequence[int]] = ()) -> Floats:
    """Recover the values of the original columns, to which the trees' questions refer, from the prepared columns.

    Args:
        X: prepared columns (m, d).
        sources: the s original columns.
        orders: for each source, the rank of each of its categories, beginning with the category that has no 0/1
            column; empty for numeric columns.

    Returns:
        One column for each source (m, s): its number, NaN if it is missing, or the rank of its category.
    """
    values = np.empty((len(X), len(sources)))
    for j, source in enumerate(sources):
        columns = X[:, list(source.at)]
        if source.categories:
            order = np.asarray(orders[j], np.float64)
            values[:, j] = np.where(columns.any(axis=1), order[1 + columns.argmax(axis=1)], order[0])
        else:
            values[:, j] = columns[:, 0]
        if source.missing is not None:
            values[X[:, source.missing] > 0, j] = np.nan
    return values


@dataclass(frozen=True, repr=False)
class Forest(SerializableFields):
    """Random trees of one party. They are secret, because cuts are quantiles of the party's rows.

    Attributes:
        sources: the original columns, by their positions among the prepared ones.
        orders: for each text column, the rank of each category; questions compare these ranks with cuts.
        columns: the index of the source that each question asks about (trees, depth).
        cuts: the cut of each question (trees, depth).
        sides: whether missing values count as above the cut (trees, depth).
        merged: for each leaf, the leaf into which it was merged, or itself (trees, 2^depth).
        counts: training rows in each leaf (trees, 2^depth).
    """

    sources: tuple[SourceColumn, ...]
    orders: tuple[tuple[int, ...], ...]
    columns: NDArray[np.intp]
    cuts: Floats
    sides: NDArray[np.bool_]
    merged: Leaves
    counts: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def depth(self) -> int:
        """The number of questions of a tree."""
        return int(self.columns.shape[1])

    @classmethod
    def draw(
        cls,
        X: Floats,
        sources: Sequence[SourceColumn],
        key: bytes,
        *,
        trees: int,
        depth: int,
        bins: int,
        min_leaf_rows: int = 1,
    ) -> Forest:
        """Draw random trees.

        Args:
            X: prepared columns (n, d) of the training rows alone.
            sources: the original columns.
            key: 32 random bytes.
            trees: the number of trees.
            depth: the number of questions of a tree.
            bins: a column has at most bins - 1 cuts.
            min_leaf_rows: leaves with fewer training rows are merged with a neighbour.

        Returns:
            The trees.
        """
        prg = Prg(key, "trees of a party's own columns")
        orders = tuple(_random_order(prg, source) for source in sources)
        values = question_values(X, sources, orders)
        cuts_of = [_cuts(column, bins) for column in values.T]
        weights = np.array([np.log2(1 + len(cuts)) ** 2 for cuts in cuts_of])
        columns, cuts = np.zeros((trees, depth), np.intp), np.full((trees, depth), np.inf)
        for tree in range(trees if weights.any() else 0):
            columns[tree] = _random_columns(prg, weights, depth)
            cuts[tree] = [cuts_of[j][int(_uniform(prg) * len(cuts_of[j]))] for j in columns[tree]]
        sides = prg.array((trees, depth), np.uint16) % 2 == 1
        unmerged = np.tile(np.arange(2**depth, dtype=np.uint8), (trees, 1))
        forest = cls(tuple(sources), orders, columns, cuts, sides, unmerged, np.zeros(unmerged.shape, np.intp))
        chunks = (values[start : start + CHUNK_ROWS] for start in range(0, len(values), CHUNK_ROWS))
        numbers = np.concatenate([forest._numbers(chunk) for chunk in chunks])
        counts = np.stack([np.bincount(leaves, minlength=2**depth) for leaves in numbers.T])
        merged = np.stack([_merged(leaf_counts, min_leaf_rows) for leaf_counts in counts])
        return cls(tuple(sources), orders, columns, cuts, sides, merged, counts)

    def leaves(self, X: Floats) -> Leaves:
        """Return the leaf that each row of prepared columns X (m, d) reaches in each tree, after merging (m, trees)."""
        return np.take_along_axis(self.merged, self.numbers(X).T.astype(np.intp), axis=1).T

    def numbers(self, X: Floats) -> Leaves:
        """Return the leaf that each row of prepared columns X (m, d) reaches, before leaves are merged (m, trees)."""
        return self._numbers(question_values(X, self.sources, self.orders))

    def _numbers(self, values: Floats) -> Leaves:
        """Return the leaves (m, trees) that rows reach, from the values (m, s) of s original columns."""
        numbers = np.zeros((len(values), len(self)), np.uint8)
        missing = np.isnan(values)
        for level in range(self.depth):
            j = self.columns[:, level]
            above = np.where(missing[:, j], self.sides[:, level], values[:, j] > self.cuts[:, level])
            numbers |= above.astype(np.uint8) << np.uint8(level)
        return numbers


def two_valued(X: Floats) -> bool:
    """Return True if no column of X (n, d) has more than two distinct values."""
    low, high = X.min(axis=0), X.max(axis=0)
    return bool(((low == X) | (high == X)).all())


def _cuts(values: Floats, bins: int) -> Floats:
    """Return the possible cuts of a column (n,): distinct quantiles below its maximum."""
    present = values[~np.isnan(values)]
    if not len(present):
        return present
    cuts: Floats = np.unique(np.quantile(present, np.arange(1, bins) / bins, method="lower"))
    return cuts[cuts < present.max()]


def _uniform(prg: Prg) -> float:
    """Return a random number in [0, 1)."""
    return float(int(prg.array(1, np.uint64)[0]) >> 11) * 2.0**-53


def _random_columns(prg: Prg, weights: Floats, depth: int) -> list[int]:
    """Draw the columns of one tree's questions by weight; a column is repeated only after all were drawn."""
    columns: list[int] = []
    remaining = weights.copy()
    while len(columns) < depth:
        if not remaining.any():
            remaining = weights.copy()
        column = int(np.searchsorted(np.cumsum(remaining), _uniform(prg) * remaining.sum(), side="right"))
        columns.append(column)
        remaining[column] = 0.0
    return columns


def _random_order(prg: Prg, source: SourceColumn) -> tuple[int, ...]:
    """Draw a random rank for each category of a text column; return an empty tuple for a numeric column."""
    if not source.categories:
        return ()
    return tuple(np.argsort(prg.array(1 + len(source.at), np.uint64), kind="stable").tolist())


def _merged(counts: NDArray[np.intp], min_leaf_rows: int) -> Leaves:
    """Merge leaves with few rows, and return for each leaf the leaf into which it was merged, or itself.

    The smallest leaf is merged into its smallest neighbour (a leaf that differs in one answer), until every leaf has
    enough rows or is empty.

    Args:
        counts: number of training rows in each leaf.
        min_leaf_rows: the number of rows that is enough.

    Returns:
        The number of a leaf for each leaf.
    """
    into, rows = np.arange(len(counts)), counts.copy()
    depth = len(counts).bit_length() - 1
    while True:
        small = np.flatnonzero((rows > 0) & (rows < min_leaf_rows))
        if not len(small) or np.count_nonzero(rows) == 1:
            return into.astype(np.uint8)
        leaf = small[np.argmin(rows[small])]
        members = np.flatnonzero(into == leaf)
        neighbours = {int(into[member ^ (1 << level)]) for member in members for level in range(depth)} - {int(leaf)}
        candidates = [other for other in neighbours if rows[other]]
        candidates = candidates or [int(other) for other in np.flatnonzero(rows) if other != leaf]
        target = min(candidates, key=lambda other: (rows[other], other))
        rows[target] += rows[leaf]
        rows[leaf] = 0
        into[into == leaf] = target
