"""Weights of evidence (WOE): each column is divided into bins, and a value becomes the weight of its bin.

With P training rows of the positive class and N of the other, a bin with p and n of them has the weight
    w = ln( (p + s) / (P + 2 s) ) - ln( (n + s) / (N + 2 s) )                  s: `smoothing`
and a column has the information value IV = sum over its bins of (p / P - n / N) w (Siddiqi 2006, Credit Risk
Scorecards).

*Special codes* are numbers with a meaning, such as -999. They, missing values and rare categories get bins of their own
if they have enough rows; otherwise they join the bin of the median or of the most frequent category. A party without
labels learns the number p of each of its bins and nothing else (`securevfl.protocols.bin_classes`); until then its
columns hold bin numbers instead of weights. Every bin has at least `rows` rows, because one row's p is its label.
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
from securevfl.data.bin_edges import shortest_between
from securevfl.data.column_transforms import (
    ColumnTransform,
    GroupedTexts,
    SpecialCodes,
    code_columns,
    is_ordinary,
    look_up,
)

MIN_WOE_ROWS = 20
"""Lower limit of the option `rows`, the minimum number of training rows of a bin."""


class Woe(Config):
    """Options of weights of evidence: how columns are divided into bins, and how weights follow from the classes."""

    bins: int = Field(default=10, ge=2, le=100)
    """Maximum number of bins of a column, in addition to one for missing or rare values."""
    rows: int = Field(default=50, ge=MIN_WOE_ROWS, le=10**9)
    """Minimum number of training rows of a bin; smaller bins are merged with others."""
    smoothing: float = Field(default=0.5, gt=0, le=100)
    """Number of rows of either class that are added to each bin."""
    iv: float = Field(default=0.0, ge=0, le=1e6)
    """Minimum information value of a column; a column below it gets weights of 0."""

    @property
    def slots(self) -> int:
        """The largest number of bins of a column. Each column gets this many places in messages with class counts."""
        return self.bins + 1

    def counts(self, columns: int) -> int:
        """Return how many class counts a party learns about the bins of `columns` columns.

        The counts of one column's bins add up to the same total for every column. So only the total and the counts of
        all bins but one of each column are counted.
        """
        return columns * self.bins + 1


class WoeTransform(ColumnTransform):
    """A column divided into bins. A value becomes its bin's weight, or its bin's number while weights are unknown.

    Attributes:
        weights: the weight of each bin.
        iv: the information value of the column.
    """

    weights: tuple[float, ...] = ()
    iv: float = 0.0

    @property
    @abstractmethod
    def bins(self) -> int:
        """The number of bins of the column."""

    @abstractmethod
    def bin_numbers(self, values: Floats, categories: tuple[str, ...]) -> Floats:
        """Return the bin number of each value (m,), NaN if a value is missing and none was missing in training."""

    def apply(self, values: Floats, categories: tuple[str, ...]) -> Floats:
        """Return the weights, or bin numbers, of a column as (m, 1)."""
        return self.weigh(self.bin_numbers(values, categories))[:, None]

    def weigh(self, bin_numbers: Floats) -> Floats:
        """Return the weight of each bin in `bin_numbers` (m,); return the bin numbers if there are no weights yet."""
        if not self.weights:
            return bin_numbers
        known = np.nan_to_num(bin_numbers).astype(np.intp)
        return np.where(np.isnan(bin_numbers), np.nan, np.array(self.weights)[known])

    def with_counts(self, positives: NDArray[np.intp], rows: NDArray[np.intp], options: Woe) -> Self:
        """Return a copy with weights, computed from the class counts of the bins.

        Args:
            positives: training rows of the positive class in each bin (bins,).
            rows: training rows in each bin (bins,).
            options: the smoothing and the minimum information value.

        Returns:
            The copy with weights.
        """
        negatives, s = rows - positives, options.smoothing
        P, N = positives.sum(), negatives.sum()
        weights = np.log((positives + s) / (P + 2 * s)) - np.log((negatives + s) / (N + 2 * s))
        iv = float(((positives / P - negatives / N) * weights).sum())
        used = weights if iv >= options.iv else np.zeros(len(weights))
        return self.model_copy(update={"weights": tuple(used.tolist()), "iv": iv})


class NumericWoe(WoeTransform):
    """A numeric column divided at increasing `edges`: bin i holds edges[i - 1] <= value < edges[i].

    Attributes:
        edges: the lower edges of all bins but the first.
        missing: the bin of missing values; None if there were none in training.
        special: the special codes, each as its text and as the number that stands for it in the column.
        special_bins: the bin of each special code.
    """

    name: ClassVar[str] = "number_evidence"
    edges: tuple[float, ...]
    missing: int | None = None
    special: SpecialCodes = ()
    special_bins: tuple[int, ...] = ()

    @property
    def bins(self) -> int:
        """The number of bins of the column."""
        return max(len(self.edges), self.missing or 0, *self.special_bins) + 1

    def bin_numbers(self, values: Floats, categories: tuple[str, ...]) -> Floats:
        """Return the bin number of each value (m,)."""
        missing = np.isnan(values)
        filled = np.where(missing, 0.0, values)
        numbers = np.searchsorted(np.array(self.edges), filled, side="right").astype(np.float64)
        numbers[missing] = np.nan if self.missing is None else self.missing
        for (_, code), bin_number in zip(self.special, self.special_bins, strict=True):
            numbers[values == code] = bin_number
        return numbers


class CategoricalWoe(WoeTransform, GroupedTexts):
    """A text column: bin i holds `categories`[i], and the bin `other` all other texts."""

    name: ClassVar[str] = "text_evidence"
    categories: tuple[str, ...]
    other: int

    @property
    def bins(self) -> int:
        """The number of bins of the column."""
        return max(len(self.categories), self.other + 1)

    def bin_numbers(self, values: Floats, categories: tuple[str, ...]) -> Floats:
        """Return the bin number of each text (m,)."""
        return look_up(values, categories, self.numbers_of(self.categories), self.other)


def number_bins(column: str, values: Floats, gaps: bool, options: Woe, codes: SpecialCodes = ()) -> NumericWoe:
    """Divide a numeric column into bins.

    Args:
        column: the name of the column.
        values: the values of the column in the training rows (n,).
        gaps: whether a value is missing in any row, training or not.
        options: the job's options: number of bins, and their smallest number of rows.
        codes: the special codes of the column (such as -999). Each code with enough rows gets a bin of its own, up to
            half of the bins; the others join the bin of missing values, or that of the median if there is no such bin.

    Returns:
        The bins, without weights.
    """
    is_number = is_ordinary(values, codes)
    present, edges = np.sort(values[is_number]), list[float]()
    alone = frequent_codes(values, codes, options, options.bins // 2)
    quantile_bins = options.bins - len(alone)
    min_rows, start = max(options.rows, -(-len(present) // quantile_bins)), 0
    for end in (np.flatnonzero(np.diff(present)) + 1).tolist():
        if end - start >= min_rows and len(present) - end >= options.rows:
            edges.append(shortest_between(present[end - 1], present[end]))
            start = end
    return add_bins_of_codes(column, values, edges, gaps=gaps, options=options, codes=codes, alone=alone)


def frequent_codes(values: Floats, codes: SpecialCodes, options: Woe, most: int) -> list[int]:
    """Return the positions in `codes` of those with enough training rows: the most frequent ones, at most `most`."""
    rows_of_code = code_columns(values, codes).sum(axis=0).astype(np.intp)
    alone = [int(code) for code in np.argsort(-rows_of_code, kind="stable") if rows_of_code[code] >= options.rows]
    return sorted(alone[:most])


def add_bins_of_codes(
    column: str,
    values: Floats,
    edges: Sequence[float],
    *,
    gaps: bool,
    options: Woe,
    codes: SpecialCodes,
    alone: Sequence[int],
) -> NumericWoe:
    """Return the bins between the given edges, plus bins for missing values and for special codes.

    Args:
        column: the name of the column.
        values: the values of the column in the training rows (n,).
        edges: the edges of the bins of numbers.
        gaps: whether a value is missing in any row, training or not.
        options: the number and the size of bins.
        codes: the special codes.
        alone: the positions in `codes` of those that get a bin of their own. The others join the bin of missing
            values, or the bin of the median if there is no such bin.

    Returns:
        The bins, without weights.
    """
    is_missing, present = np.isnan(values), values[is_ordinary(values, codes)]
    missing = None
    median_bin = int(np.searchsorted(np.array(edges), np.median(present), side="right"))
    if gaps and is_missing.sum() >= options.rows:
        missing = len(edges) + 1
    elif gaps:
        missing = median_bin
    next_bin = max(len(edges), missing or 0) + 1
    others = median_bin if missing is None else missing
    bin_of = {code: next_bin + number for number, code in enumerate(alone)}
    special_bins = tuple(bin_of.get(code, others) for code in range(len(codes)))
    return NumericWoe(column=column, edges=tuple(edges), missing=missing, special=codes, special_bins=special_bins)


def text_bins(column: str, counts: dict[str, int], options: Woe) -> CategoricalWoe:
    """Divide a text column into bins, from the number of training rows of each category."""
    ranked = sorted(counts, key=lambda text: (-counts[text], text))
    frequent = [text for text in ranked if counts[text] >= options.rows][: options.bins]
    rare = sum(counts.values()) - sum(counts[text] for text in frequent)
    other = len(frequent) if rare >= options.rows else 0
    return CategoricalWoe(column=column, categories=tuple(frequent), other=other)


class BinIndicators:
    """A 0/1 matrix (n, k * slots) that states in which bin of each of k columns a row is. It is computed when read.

    Args:
        bin_numbers: the bin of each value (n, k).
        slots: the number of matrix columns for each column of the table. Bin i of column j is matrix column
            `j * slots + i`; matrix columns without a bin are 0.
    """

    def __init__(self, bin_numbers: Floats, slots: int) -> None:
        self._positions = bin_numbers.astype(np.intp) + np.arange(bin_numbers.shape[1]) * slots
        self.slots = slots
        self.shape = len(bin_numbers), bin_numbers.shape[1] * slots

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice, /) -> Floats:
        positions = self._positions[rows]
        indicators = np.zeros((len(positions), self.shape[1]))
        indicators[np.arange(len(positions))[:, None], positions] = 1.0
        return indicators

    @property
    def rows(self) -> NDArray[np.intp]:
        """The number of rows in each bin (k * slots,); 0 for columns of the matrix that stand for no bin."""
        return np.bincount(self._positions.ravel(), minlength=self.shape[1])

    @property
    def requested(self) -> RequestedBins:
        """The bins whose counts are requested from the party with labels; all other counts follow from these."""
        return RequestedBins(self)

    def positives(self, is_positive: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Return the number of rows of the positive class in each bin (k * slots,).

        Args:
            is_positive: whether each row is of the positive class (n,).

        Returns:
            The numbers.
        """
        return np.bincount(self._positions[is_positive].ravel(), minlength=self.shape[1])


class RequestedBins:
    """A 0/1 matrix with a column of ones for all rows, and a column for every bin except the last one of each column.

    The counts of a column's bins add up to the number of all rows, so the count of its last bin follows from the
    others.
    """

    def __init__(self, bins: BinIndicators) -> None:
        self._bins = bins
        slots = np.arange(bins.shape[1])
        self._requested = slots[slots % bins.slots < bins.slots - 1]
        self.shape = len(bins), 1 + len(self._requested)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice, /) -> Floats:
        indicators = self._bins[rows]
        return np.concatenate([np.ones((len(indicators), 1)), indicators[:, self._requested]], axis=1)

    @property
    def rows(self) -> NDArray[np.intp]:
        """The number of rows that each count is about."""
        return np.concatenate([[len(self)], self._bins.rows[self._requested]])

    def expand(self, counts: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the counts of all bins (k * slots,) from the requested counts."""
        others = counts[1:].reshape(-1, self._bins.slots - 1)
        return np.concatenate([others, (counts[0] - others.sum(axis=1))[:, None]], axis=1).ravel()


def apply_class_counts(
    transforms: Sequence[ColumnTransform], bins: BinIndicators, positives: NDArray[np.intp], options: Woe
) -> tuple[ColumnTransform, ...]:
    """Return transforms with the weights that follow from the class counts of their bins.

    Args:
        transforms: one for each column, all of them `WoeTransform`.
        bins: the bins of the training rows.
        positives: number of rows of the positive class in each bin (k * slots,).
        options: the smoothing and the minimum information value.

    Returns:
        The transforms with weights.
    """
    rows, weighted = bins.rows, list[ColumnTransform]()
    for start, transform in zip(range(0, len(rows), options.slots), transforms, strict=True):
        assert isinstance(transform, WoeTransform), "either all columns have weights of evidence, or none"
        slots = slice(start, start + transform.bins)
        weighted.append(transform.with_counts(positives[slots], rows[slots], options))
    return tuple(weighted)
