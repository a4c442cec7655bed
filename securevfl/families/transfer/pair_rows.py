"""Rows of a Jacobian for pairs of units j <= k, and the positions of their zeros.

A *unit* is one of the d outputs of a party's network; the columns of the Jacobian are the network's weights. To compute
a gradient, the row of a pair (j, k) is multiplied by entry (j, k) of the other party's symmetric matrix (d, d). This
row is zero except in the columns (weights) that affect unit j or unit k. Pairs are ordered by squares of `SQUARE_UNITS`
x `SQUARE_UNITS` units, so that consecutive pairs involve few units.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import SparseRows

SQUARE_UNITS = 16


@functools.lru_cache(maxsize=8)
def unit_pairs(d: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return all pairs j <= k < d, square by square: two arrays (d * (d + 1) / 2,)."""
    j, k = np.triu_indices(d)
    order = np.lexsort((k, j, k // SQUARE_UNITS, j // SQUARE_UNITS))
    return j[order], k[order]


class PairRows(SparseRows):
    """A matrix (d * (d + 1) / 2, columns): row (j, k) is by_unit[k][j], plus by_unit[j][k] if j < k.

    Args:
        by_unit: for every unit k, its columns (w,) in ascending order and values (d, w).
    """

    def __init__(self, by_unit: Sequence[tuple[NDArray[np.intp], Floats]]) -> None:
        self._by_unit = by_unit
        self._first, self._second = unit_pairs(len(by_unit))
        self._width = 1 + max(int(columns[-1]) for columns, _ in by_unit)

    @property
    def shape(self) -> tuple[int, int]:
        """The number of pairs, d * (d + 1) / 2, and the number of columns."""
        return len(self._first), self._width

    def part(self, start: int, stop: int) -> tuple[NDArray[np.intp], Floats]:
        """Return the columns in which rows start to stop - 1 may have non-zero entries, and the entries."""
        columns, first, second = self.columns(start, stop), self._first[start:stop], self._second[start:stop]
        values = np.zeros((stop - start, len(columns)))
        for unit in self._units(start, stop):
            unit_columns, unit_values = self._by_unit[unit]
            positions = np.searchsorted(columns, unit_columns)
            for is_unit, partner in ((second == unit, first), ((first == unit) & (second != unit), second)):
                rows = np.flatnonzero(is_unit)
                values[rows[:, None], positions] += unit_values[partner[rows]]
        return columns, values

    def columns(self, start: int, stop: int) -> NDArray[np.intp]:
        """Return the columns in which rows start to stop - 1 may have non-zero entries."""
        return np.unique(np.concatenate([self._by_unit[unit][0] for unit in self._units(start, stop)]))

    def _units(self, start: int, stop: int) -> NDArray[np.intp]:
        """Return the units that occur in the pairs of rows start to stop - 1."""
        return np.union1d(self._first[start:stop], self._second[start:stop])
