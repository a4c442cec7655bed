"""Random trees of one party's own columns, whose leaves are the columns that weights are trained for.

All nodes of a level of a tree ask the same question, "is this column above this cut?", so a leaf is a number of `depth`
bits. Columns and cuts are drawn at random, with no look at any label: extremely randomised trees (Geurts, Ernst and
Wehenkel 2006) in the symmetric shape of oblivious ones. The draw is from a key of the party's own, which nobody else
has: others learn how many trees there are and how deep they go, and neither columns nor cuts.

    cuts      the distinct quantiles i / bins of a column's training rows; a column without any is never asked about
    columns   drawn with the weight log2(1 + cuts)^2, none twice in a tree while there are others
    missing   on a side that a coin of the question says, for each column of numbers that says where it is missing
    texts     one column of codes, in an order that is drawn

Beside the leaves stand the columns as they are (`Lines`): trees follow bends, and lines what is straight. Where all
columns have two values nothing bends, and trees are worth what pairs of columns are: leaves then count less, and lines
more (`two_valued`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats, SerializableFields
from securevfl.crypto.prg import Prg
from securevfl.data.preparation import SourceColumn

Leaves = NDArray[np.uint8]  # numbers of leaves (m x trees)

DEEPEST = 8  # questions of a tree, as many as the number of a leaf has bits
MOST_BINS = 255
STRETCH = 16_384  # rows whose questions are asked at a time


def asked(X: Floats, sources: Sequence[SourceColumn], orders: Sequence[Sequence[int]] = ()) -> Floats:
    """Return the values (m x s) that questions ask about, one column a source, of prepared columns X (m x d).

    A number that is missing is NaN. A text is its place in the order of its source, which holds a place for the level
    without a column first; sources of numbers have none.
    """
    found = np.empty((len(X), len(sources)))
    for j, source in enumerate(sources):
        own = X[:, list(source.at)]
        if source.levels:
            order = np.asarray(orders[j], np.float64)
            found[:, j] = np.where(own.any(axis=1), order[1 + own.argmax(axis=1)], order[0])
        else:
            found[:, j] = own[:, 0]
        if source.missing is not None:
            found[X[:, source.missing] > 0, j] = np.nan
    return found


@dataclass(frozen=True, repr=False)
class Forest(SerializableFields):
    """Trees that are drawn: of the columns `sources` of one party, in prepared columns.

    columns (trees x depth): the source of each question; cuts, its number; sides, whether what is missing goes with
    what is above. counts (trees x 2^depth): training rows in each leaf. merged (trees x 2^depth): the leaf that each
    leaf is counted as. Secret: cuts are quantiles of the party's own rows.
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
        """The number of questions that a tree asks."""
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
        fewest: int = 1,
    ) -> Forest:
        """Draws `trees` trees for prepared columns X (n x d) of the training rows, and of no others.

        key: 32 random bytes. fewest: leaves of fewer training rows count as a neighbour.
        """
        prg = Prg(key, "trees of a party's own columns")
        orders = tuple(_order(prg, source) for source in sources)
        values = asked(X, sources, orders)
        ends = [_cuts(column, bins) for column in values.T]
        weights = np.array([np.log2(1 + len(own)) ** 2 for own in ends])
        columns, cuts = np.zeros((trees, depth), np.intp), np.full((trees, depth), np.inf)
        for tree in range(trees if weights.any() else 0):
            columns[tree] = _chosen(prg, weights, depth)
            cuts[tree] = [ends[j][int(_uniform(prg) * len(ends[j]))] for j in columns[tree]]
        sides = prg.array((trees, depth), np.uint16) % 2 == 1
        same = np.tile(np.arange(2**depth, dtype=np.uint8), (trees, 1))
        drawn = cls(tuple(sources), orders, columns, cuts, sides, same, np.zeros(same.shape, np.intp))
        stretches = (values[at : at + STRETCH] for at in range(0, len(values), STRETCH))
        numbers = np.concatenate([drawn._numbers(stretch) for stretch in stretches])
        counts = np.stack([np.bincount(own, minlength=2**depth) for own in numbers.T])
        merged = np.stack([_merged(own, fewest) for own in counts])
        return cls(tuple(sources), orders, columns, cuts, sides, merged, counts)

    def leaves(self, X: Floats) -> Leaves:
        """Return the leaf of each tree (m x trees) that rows of prepared columns X (m x d) count as in."""
        return np.take_along_axis(self.merged, self.numbers(X).T.astype(np.intp), axis=1).T

    def numbers(self, X: Floats) -> Leaves:
        """Return the leaf of each tree (m x trees) by the answers to its questions alone, before any are merged."""
        return self._numbers(asked(X, self.sources, self.orders))

    def _numbers(self, values: Floats) -> Leaves:
        """`numbers`, of what questions are asked about (m x s)."""
        found = np.zeros((len(values), len(self)), np.uint8)
        lacks = np.isnan(values)
        for level in range(self.depth):
            j = self.columns[:, level]
            above = np.where(lacks[:, j], self.sides[:, level], values[:, j] > self.cuts[:, level])
            found |= above.astype(np.uint8) << np.uint8(level)
        return found


def two_valued(X: Floats) -> bool:
    """Whether no column of X (n x d) has more than two values."""
    low, high = X.min(axis=0), X.max(axis=0)
    return bool(((low == X) | (high == X)).all())


def _cuts(values: Floats, bins: int) -> Floats:
    """Return the values at which a question may cut a column: those that have others above them."""
    present = values[~np.isnan(values)]
    if not len(present):
        return present
    found: Floats = np.unique(np.quantile(present, np.arange(1, bins) / bins, method="lower"))
    return found[found < present.max()]


def _uniform(prg: Prg) -> float:
    """Draw a number in [0, 1)."""
    return float(int(prg.array(1, np.uint64)[0]) >> 11) * 2.0**-53


def _chosen(prg: Prg, weights: Floats, depth: int) -> list[int]:
    """Draw the columns of one tree by weight; none twice while there are others."""
    chosen: list[int] = []
    left = weights.copy()
    while len(chosen) < depth:
        if not left.any():
            left = weights.copy()
        at = int(np.searchsorted(np.cumsum(left), _uniform(prg) * left.sum(), side="right"))
        chosen.append(at)
        left[at] = 0.0
    return chosen


def _order(prg: Prg, source: SourceColumn) -> tuple[int, ...]:
    """Draw the places of a text's levels; none for numbers."""
    if not source.levels:
        return ()
    return tuple(np.argsort(prg.array(1 + len(source.at), np.uint64), kind="stable").tolist())


def _merged(counts: NDArray[np.intp], fewest: int) -> Leaves:
    """Merge leaves with few rows: return the leaf that each counts as.

    None then holds fewer rows unless it is empty: the smallest joins its smallest neighbour, one answer away, as long
    as there is one.
    """
    into, held = np.arange(len(counts)), counts.copy()
    depth = len(counts).bit_length() - 1
    while True:
        small = np.flatnonzero((held > 0) & (held < fewest))
        if not len(small) or np.count_nonzero(held) == 1:
            return into.astype(np.uint8)
        leaf = small[np.argmin(held[small])]
        members = np.flatnonzero(into == leaf)
        near = {int(into[member ^ (1 << level)]) for member in members for level in range(depth)} - {int(leaf)}
        filled = [each for each in near if held[each]] or [int(each) for each in np.flatnonzero(held) if each != leaf]
        target = min(filled, key=lambda each: (held[each], each))
        held[target] += held[leaf]
        held[leaf] = 0
        into[into == leaf] = target
