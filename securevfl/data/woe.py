"""Weight of evidence (WOE): every column is parted into bins, and a value becomes what its bin says of the label.

With P rows of the positive class in the training and N of the other, a bin of p and n of them gets the weight

    w = ln( (p + s) / (P + 2 s) ) - ln( (n + s) / (N + 2 s) )                  s: `smoothing`

and a column the information value IV = sum over its bins of (p / P - n / N) w (Siddiqi 2006, Credit Risk Scorecards;
smoothed as category_encoders does). Numbers are parted at quantiles, texts by their commonest levels. Missing values,
and rare levels together, have a bin of their own where they are enough rows, and else go with the bin of the median or
with the commonest level.

Bins are fitted by a party alone. Who has no labels is told p of each of its bins and nothing else
(`securevfl.protocols.bin_classes`); until then a step gives the number of the bin in place of the weight. A bin of one
row would tell that row's label, so no bin has fewer than `rows` training rows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from securevfl.base.arrays import Floats
from securevfl.base.config import Config
from securevfl.data.bin_edges import rounded
from securevfl.data.column_transforms import ColumnTransform, looked_up

LEAST = 20  # training rows that no bin may be below, whatever a job says


class Woe(Config):
    """How columns are parted, and what is made of the classes in each bin."""

    bins: int = Field(default=10, ge=2, le=100)
    """The most bins of a column, beside one for missing or rare values."""
    rows: int = Field(default=50, ge=LEAST)
    """The fewest training rows of a bin; smaller ones go with others."""
    smoothing: float = Field(default=0.5, gt=0, le=100)
    """Rows of either class that every bin is given beside its own."""
    iv: float = Field(default=0.0, ge=0)
    """The least information value of a column; one of less says nothing, as if it did not vary."""

    @property
    def slots(self) -> int:
        """Room for the bins of one column."""
        return self.bins + 1

    def counts(self, columns: int) -> int:
        """Return how many counts tell the classes in all bins of so many columns: one of all rows, and of each column
        all but one, as those of a column add up to the same number in each."""
        return columns * self.bins + 1


class WoeTransform(ColumnTransform):
    """A column as the weights of its bins; without `weights` yet as the numbers of its bins. iv: information value."""

    weights: tuple[float, ...] = ()
    iv: float = 0.0

    @property
    @abstractmethod
    def bins(self) -> int:
        """The number of bins that the column is divided into."""

    @abstractmethod
    def places(self, values: Floats, levels: tuple[str, ...]) -> Floats:
        """Return the bin number of each value (m,), NaN where a value is missing that was never missing before."""

    def apply(self, values: Floats, levels: tuple[str, ...]) -> Floats:
        return self.weigh(self.places(values, levels))[:, None]

    def weigh(self, places: Floats) -> Floats:
        """Return the weights of these bins (m,); the bins as they are where there are no weights yet."""
        if not self.weights:
            return places
        known = np.nan_to_num(places).astype(np.intp)
        return np.where(np.isnan(places), np.nan, np.array(self.weights)[known])

    def weighed(self, positives: NDArray[np.intp], rows: NDArray[np.intp], options: Woe) -> Self:
        """Return the same bins with weights, from the rows (bins,) of each bin in the training.

        positives: how many of these are of the positive class.
        """
        negatives, s = rows - positives, options.smoothing
        P, N = positives.sum(), negatives.sum()
        weights = np.log((positives + s) / (P + 2 * s)) - np.log((negatives + s) / (N + 2 * s))
        iv = float(((positives / P - negatives / N) * weights).sum())
        kept = weights if iv >= options.iv else np.zeros(len(weights))
        return self.model_copy(update={"weights": tuple(kept.tolist()), "iv": iv})


class NumericWoe(WoeTransform):
    """A column of numbers parted at rising `edges`: bin i holds edges[i - 1] <= value < edges[i]. missing: the bin of
    missing values, None if there were none."""

    name: ClassVar[str] = "number_evidence"
    edges: tuple[float, ...]
    missing: int | None = None

    @property
    def bins(self) -> int:
        return max(len(self.edges), self.missing or 0) + 1

    def places(self, values: Floats, levels: tuple[str, ...]) -> Floats:
        lacks = np.isnan(values)
        place = np.searchsorted(np.array(self.edges), np.where(lacks, 0.0, values), side="right").astype(np.float64)
        place[lacks] = np.nan if self.missing is None else self.missing
        return place


class CategoricalWoe(WoeTransform):
    """A column of texts: bin i holds `levels`[i], and the bin `other` all texts that are none of these."""

    name: ClassVar[str] = "text_evidence"
    levels: tuple[str, ...]
    other: int

    @property
    def bins(self) -> int:
        return max(len(self.levels), self.other + 1)

    def places(self, values: Floats, levels: tuple[str, ...]) -> Floats:
        return looked_up(values, levels, {level: number for number, level in enumerate(self.levels)}, self.other)


def number_bins(column: str, values: Floats, gaps: bool, options: Woe) -> NumericWoe:
    """Divide a column of numbers into bins, from its training rows (n,); `gaps`: whether any row lacks it."""
    lacks = np.isnan(values)
    present, edges = np.sort(values[~lacks]), []
    least, start = max(options.rows, -(-len(present) // options.bins)), 0
    for at in (np.flatnonzero(np.diff(present)) + 1).tolist():
        if at - start >= least and len(present) - at >= options.rows:
            edges.append(rounded(present[at - 1], present[at]))
            start = at
    missing = None
    if gaps and lacks.sum() >= options.rows:
        missing = len(edges) + 1
    elif gaps:
        missing = int(np.searchsorted(edges, np.median(present), side="right"))
    return NumericWoe(column=column, edges=tuple(edges), missing=missing)


def text_bins(column: str, counts: dict[str, int], options: Woe) -> CategoricalWoe:
    """Divide a column of texts into bins, from how many training rows have each level."""
    ranked = sorted(counts, key=lambda level: (-counts[level], level))
    kept = [level for level in ranked if counts[level] >= options.rows][: options.bins]
    rare = sum(counts.values()) - sum(counts[level] for level in kept)
    return CategoricalWoe(column=column, levels=tuple(kept), other=len(kept) if rare >= options.rows else 0)


class BinIndicators:
    """The 0/1 matrix of bins (n x k slots) of k columns, made when rows of it are read:
    `securevfl.base.chunked_matrix.Rows`.

    places (n x k): the number of each value's bin. Column j has its bins from j slots on; what it does not need is 0.
    """

    def __init__(self, places: Floats, slots: int) -> None:
        self._places = places.astype(np.intp) + np.arange(places.shape[1]) * slots
        self.slots = slots
        self.shape = len(places), places.shape[1] * slots

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice, /) -> Floats:
        own = self._places[rows]
        found = np.zeros((len(own), self.shape[1]))
        found[np.arange(len(own))[:, None], own] = 1.0
        return found

    @property
    def rows(self) -> NDArray[np.intp]:
        """How many rows each slot has (k slots,)."""
        return np.bincount(self._places.ravel(), minlength=self.shape[1])

    @property
    def asked(self) -> RequestedBins:
        """The bins whose counts tell those of all."""
        return RequestedBins(self)

    def positives(self, later: NDArray[np.bool_]) -> NDArray[np.intp]:
        """How many rows of each slot are marked (k slots,)."""
        return np.bincount(self._places[later].ravel(), minlength=self.shape[1])


class RequestedBins:
    """The 0/1 matrix of all rows, and of every bin but the last of each column: its counts tell those of the last."""

    def __init__(self, bins: BinIndicators) -> None:
        self._bins = bins
        slots = np.arange(bins.shape[1])
        self._kept = slots[slots % bins.slots < bins.slots - 1]
        self.shape = len(bins), 1 + len(self._kept)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice, /) -> Floats:
        own = self._bins[rows]
        return np.concatenate([np.ones((len(own), 1)), own[:, self._kept]], axis=1)

    @property
    def rows(self) -> NDArray[np.intp]:
        """How many rows each count is of."""
        return np.concatenate([[len(self)], self._bins.rows[self._kept]])

    def every(self, counts: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the counts of all slots (k slots,) from those that were asked."""
        others = counts[1:].reshape(-1, self._bins.slots - 1)
        return np.concatenate([others, (counts[0] - others.sum(axis=1))[:, None]], axis=1).ravel()


def weighed(
    steps: Sequence[ColumnTransform], bins: BinIndicators, positives: NDArray[np.intp], options: Woe
) -> tuple[ColumnTransform, ...]:
    """Return the steps with the weights that follow from the rows of the positive class in each slot (k slots,)."""
    rows, weighed_steps = bins.rows, list[ColumnTransform]()
    for start, step in zip(range(0, len(rows), options.slots), steps, strict=True):
        assert isinstance(step, WoeTransform), "a table is weighed whole"
        own = slice(start, start + step.bins)
        weighed_steps.append(step.weighed(positives[own], rows[own], options))
    return tuple(weighed_steps)
