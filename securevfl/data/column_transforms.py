"""What becomes of one column before it is scaled: one step a column, kept as plain numbers in a party's part.

number   filled where it is missing, clipped or squashed, and beside it a 0/1 column that says where it was missing
dates    days since 1970-01-01, and beside them month and weekday where these vary
bins     a 0/1 column for each edge between stretches of values, which says what lies at it or above
texts    a 0/1 column for each level but the commonest; rare levels share one
codes    one column of whole numbers, which name the levels from the commonest on, for tables of embeddings

A step is fitted on training rows alone and applied to all others as it is. Weights of evidence are another kind
(`securevfl.data.woe`); adding one is a class and a name in `securevfl.data.preparation.STEPS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from securevfl.base.arrays import Floats
from securevfl.base.config import NamedOption
from securevfl.data.bin_edges import decimal

OTHER = "(other)"  # the level that rare and unknown texts share
MISSING = "(missing)"
THURSDAY = 3  # the weekday of 1970-01-01


class ColumnTransform(NamedOption, ABC):
    """The step that turns one column, `column`, into k columns of numbers."""

    column: str

    @property
    def features(self) -> list[str]:
        """The names of the k columns that it makes."""
        return [self.column]

    @abstractmethod
    def apply(self, values: Floats, levels: tuple[str, ...]) -> Floats:
        """Turn a column (m,), held as `securevfl.data.columns` describes, with the levels of its texts, into these k
        columns (m x k).

        NaN stays where a value is missing that was never missing in the training.
        """


class ImputedTransform(ColumnTransform):
    """A column of numbers. `fill` stands for what is missing (None if nothing was), and `indicator` adds a 0/1 column
    that says where it was missing."""

    fill: float | None = None
    indicator: bool = False

    @property
    def features(self) -> list[str]:
        return [*self._names(), *([f"{self.column}={MISSING}"] if self.indicator else [])]

    def apply(self, values: Floats, levels: tuple[str, ...]) -> Floats:
        lacks = np.isnan(values)
        made = self._make(values if self.fill is None else np.where(lacks, self.fill, values))
        return np.column_stack([made, lacks]) if self.indicator else made

    def _names(self) -> list[str]:
        """Return the names of what `_make` makes."""
        return [self.column]

    @abstractmethod
    def _make(self, filled: Floats) -> Floats:
        """Turn a column (m,) without gaps into columns (m x k)."""


class NumericTransform(ImputedTransform):
    """A column of numbers, with `low` and `high` as its ends where it is clipped. With a `spread` the numbers become
    asinh((x - centre) / spread)."""

    name: ClassVar[str] = "number"
    low: float | None = None
    high: float | None = None
    centre: float = 0.0
    spread: float | None = Field(default=None, gt=0)

    def _make(self, filled: Floats) -> Floats:
        if self.low is not None or self.high is not None:
            filled = np.clip(filled, self.low, self.high)
        if self.spread is not None:
            filled = np.arcsinh((filled - self.centre) / self.spread)
        return filled[:, None]


class DateTransform(ImputedTransform):
    """A column of dates, in days since 1970-01-01: the days, and those `parts` of them that vary."""

    name: ClassVar[str] = "dates"
    parts: tuple[Literal["month", "weekday"], ...] = ()

    def _names(self) -> list[str]:
        return [self.column, *(f"{self.column}={part}" for part in self.parts)]

    def _make(self, filled: Floats) -> Floats:
        return np.column_stack([filled, *(part_of_date(part, filled) for part in self.parts)])


def part_of_date(part: Literal["month", "weekday"], days: Floats) -> Floats:
    """Return the month, 1 to 12, or the weekday, 0 (Monday) to 6, of days since 1970-01-01 (n,); NaN for a missing
    one."""
    lacks = np.isnan(days)
    whole = np.floor(np.where(lacks, 0.0, days)).astype(np.int64)
    found = whole.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64) % 12 + 1
    if part == "weekday":
        found = (whole + THURSDAY) % 7
    return np.where(lacks, np.nan, found)


class BinTransform(ImputedTransform):
    """A column of numbers parted at rising `edges` (`securevfl.data.bin_edges`): a column for each says where the value
    is as large or larger."""

    name: ClassVar[str] = "bins"
    edges: tuple[float, ...]

    def _names(self) -> list[str]:
        return [f"{self.column}>={decimal(edge)}" for edge in self.edges]

    def _make(self, filled: Floats) -> Floats:
        over = (filled[:, None] >= np.array(self.edges)).astype(np.float64)
        over[np.isnan(filled)] = np.nan
        return over


def looked_up(values: Floats, levels: tuple[str, ...], known: Mapping[str, int], other: int) -> Floats:
    """Return the number (m,) that is known for each text, given as places among levels; `other` for any other text."""
    numbers = np.array([known.get(text, other) for text in (*levels, MISSING)], np.float64)
    return numbers[np.where(np.isnan(values), len(levels), values).astype(np.intp)]


class OneHotTransform(ColumnTransform):
    """A column of texts: those of `levels` have a column each, all others share one if `other`. `base` has none."""

    name: ClassVar[str] = "texts"
    base: str
    levels: tuple[str, ...]
    other: bool = False

    @property
    def features(self) -> list[str]:
        return [f"{self.column}={level}" for level in (*self.levels, *([OTHER] if self.other else []))]

    def apply(self, values: Floats, levels: tuple[str, ...]) -> Floats:
        """Unknown texts go with the rare ones, or if there were none with the base."""
        places = {level: place for place, level in enumerate(self.levels)} | {self.base: -1}
        own = looked_up(values, levels, places, len(self.levels) if self.other else -1)
        return (own[:, None] == np.arange(len(self.levels) + self.other)).astype(np.float64)


class CodeTransform(ColumnTransform):
    """A column of texts as whole numbers: 1, 2 ... for those of `levels`, 0 for rare and unknown ones."""

    name: ClassVar[str] = "codes"
    levels: tuple[str, ...]

    def apply(self, values: Floats, levels: tuple[str, ...]) -> Floats:
        codes = {level: code for code, level in enumerate(self.levels, 1)}
        return looked_up(values, levels, codes, 0)[:, None]
