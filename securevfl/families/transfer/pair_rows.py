"""Rows of a Jacobian that belong to a pair of units j <= k, and where they are zero.

What such a row multiplies is one number of a symmetric matrix (d x d). Its entries are a part for k, in the columns
that move representation k, and a part for j in those that move j; all others are zero whatever the data are. Pairs
are ordered by squares of `SQUARE_UNITS` x `SQUARE_UNITS` units, so that consecutive ones are of few units.
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
    """All j <= k below d, square by square: both (d (d + 1) / 2,)."""
    j, k = np.triu_indices(d)
    order = np.lexsort((k, j, k // SQUARE_UNITS, j // SQUARE_UNITS))
    return j[order], k[order]


class PairRows(SparseRows):
    """(d (d + 1) / 2 x columns): row (j, k) is by_unit[k][j] and, where j < k, by_unit[j][k] beside it.

    by_unit: for every unit k its columns (w,) in order, and numbers (d x w).
    """

    def __init__(self, by_unit: Sequence[tuple[NDArray[np.intp], Floats]]) -> None:
        self._by_unit = by_unit
        self._first, self._second = unit_pairs(len(by_unit))
        self._width = 1 + max(int(columns[-1]) for columns, _ in by_unit)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self._first), self._width

    def part(self, start: int, stop: int) -> tuple[NDArray[np.intp], Floats]:
        columns, first, second = self.columns(start, stop), self._first[start:stop], self._second[start:stop]
        found = np.zeros((stop - start, len(columns)))
        for unit in self._units(start, stop):
            own, numbers = self._by_unit[unit]
            at = np.searchsorted(columns, own)
            for mine, others in ((second == unit, first), ((first == unit) & (second != unit), second)):
                rows = np.flatnonzero(mine)
                found[rows[:, None], at] += numbers[others[rows]]
        return columns, found

    def columns(self, start: int, stop: int) -> NDArray[np.intp]:
        return np.unique(np.concatenate([self._by_unit[unit][0] for unit in self._units(start, stop)]))

    def _units(self, start: int, stop: int) -> NDArray[np.intp]:
        """Which units these rows are of."""
        return np.union1d(self._first[start:stop], self._second[start:stop])
