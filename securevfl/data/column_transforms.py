"""Transforms of single columns, fitted on training rows and stored as plain numbers in a party's part of the model.

Each transform turns one original column into k numeric columns:
    number   fills missing values and special codes; optionally clips or compresses values and adds 0/1 columns that
             mark the filled rows
    dates    days since 1970-01-01, and month and weekday if these vary
    bins     a 0/1 column for each edge, which is 1 if the value is at or above it (`securevfl.data.bin_edges`)
    texts    a 0/1 column for each category but the most frequent; rare categories share one
    codes    one column of integers that number the categories, for embedding tables of neural networks
    woe      weights of evidence (`securevfl.data.woe`)
A *special code* is a number with a meaning of its own, such as -999 for "refused". A *category* is a text of a column.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from securevfl.base.arrays import Floats
from securevfl.base.config import NamedOption
from securevfl.data.bin_edges import format_number
from securevfl.data.column_types import Groups, group_name

OTHER_CATEGORY = "(other)"
"""The category that rare and unknown texts share."""
MISSING_CATEGORY = "(missing)"
"""The category of missing texts, and the suffix of columns that mark missing values."""
EPOCH_WEEKDAY = 3
"""The weekday of 1970-01-01, a Thursday."""


class ColumnTransform(NamedOption, ABC):
    """A transform that was fitted to training rows: it turns the column named `column` into k numeric columns."""

    column: str

    @property
    def features(self) -> list[str]:
        """The names of the k columns that the transform produces."""
        return [self.column]

    @abstractmethod
    def apply(self, values: Floats, categories: tuple[str, ...]) -> Floats:
        """Transform a column.

        Args:
            values: the column (m,): numbers, or the positions of its texts among `categories`; NaN if missing.
            categories: the texts of a text column.

        Returns:
            The k columns (m, k). NaN remains where a value is missing, if no training row had a missing value.
        """


SpecialCodes = tuple[tuple[str, float], ...]
"""The special codes of a column, each with its number among the values."""


def code_columns(values: Floats, codes: SpecialCodes) -> Floats:
    """Return a 0/1 column for each of k special codes (m, k); it is 1 in the rows that contain the code."""
    numbers = np.array([number for _, number in codes], np.float64)
    return (values[:, None] == numbers).astype(np.float64)


def is_ordinary(values: Floats, codes: SpecialCodes) -> NDArray[np.bool_]:
    """Return whether each value of a column (n,) is neither missing nor a special code."""
    present = ~np.isnan(values)
    return present & ~code_columns(values, codes).any(axis=1) if codes else present


class ImputedTransform(ColumnTransform):
    """A transform of a numeric column that fills missing values and replaces special codes.

    Attributes:
        fill: the number that replaces missing values; None if no value was missing in training.
        indicator: whether to add a 0/1 column that marks missing values.
        marked: the special codes that have a 0/1 column.
        unmarked: the special codes without a 0/1 column, because too few training rows had them.
        special_fill: the number that replaces special codes.
    """

    fill: float | None = None
    indicator: bool = False
    marked: SpecialCodes = ()
    unmarked: SpecialCodes = ()
    special_fill: float = 0.0

    @property
    def features(self) -> list[str]:
        """The names of the resulting columns."""
        marks = [f"{self.column}={code}" for code, _ in self.marked]
        return [*self._names(), *marks, *([f"{self.column}={MISSING_CATEGORY}"] if self.indicator else [])]

    @property
    def special(self) -> SpecialCodes:
        """All special codes, first those that have a 0/1 column."""
        return (*self.marked, *self.unmarked)

    def apply(self, values: Floats, categories: tuple[str, ...]) -> Floats:
        """Fill missing values and special codes, transform the column, and append the 0/1 columns that mark them."""
        missing = np.isnan(values)
        filled = values if self.fill is None else np.where(missing, self.fill, values)
        if self.special:
            is_special = code_columns(values, self.special).any(axis=1)
            filled = np.where(is_special, self.special_fill, filled)
        features = self._transform(filled)
        marks = [code_columns(values, self.marked)] if self.marked else []
        return np.column_stack([features, *marks, *([missing] if self.indicator else [])])

    def _names(self) -> list[str]:
        """Return the names of the k columns that `_transform` returns."""
        return [self.column]

    @abstractmethod
    def _transform(self, filled: Floats) -> Floats:
        """Transform a column (m,) without missing values into k columns (m, k)."""


class NumericTransform(ImputedTransform):
    """A numeric column: clipped to [low, high], or replaced by asinh((x - centre) / spread) if `spread` is set."""

    name: ClassVar[str] = "number"
    low: float | None = None
    high: float | None = None
    centre: float = 0.0
    spread: float | None = Field(default=None, gt=0)

    def _transform(self, filled: Floats) -> Floats:
        if self.low is not None or self.high is not None:
            filled = np.clip(filled, self.low, self.high)
        if self.spread is not None:
            filled = np.arcsinh((filled - self.centre) / self.spread)
        return filled[:, None]


class DateTransform(ImputedTransform):
    """A date column, in days since 1970-01-01: the days, and a column for each of `parts` (month, weekday)."""

    name: ClassVar[str] = "dates"
    parts: tuple[Literal["month", "weekday"], ...] = ()

    def _names(self) -> list[str]:
        return [self.column, *(f"{self.column}={part}" for part in self.parts)]

    def _transform(self, filled: Floats) -> Floats:
        return np.column_stack([filled, *(part_of_date(part, filled) for part in self.parts)])


def part_of_date(part: Literal["month", "weekday"], days: Floats) -> Floats:
    """Return the month (1 to 12) or the weekday (Monday is 0) of days since 1970-01-01 (n,). NaN remains NaN."""
    missing = np.isnan(days)
    dates = np.floor(np.where(missing, 0.0, days)).astype(np.int64)
    if part == "weekday":
        numbers = (dates + EPOCH_WEEKDAY) % 7
    else:
        numbers = dates.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64) % 12 + 1
    return np.where(missing, np.nan, numbers)


class BinTransform(ImputedTransform):
    """A numeric column that becomes 0/1 columns, one for each of the increasing `edges` (1 if the value is >= edge)."""

    name: ClassVar[str] = "bins"
    edges: tuple[float, ...]

    def _names(self) -> list[str]:
        return [f"{self.column}>={format_number(edge)}" for edge in self.edges]

    def _transform(self, filled: Floats) -> Floats:
        reached = (filled[:, None] >= np.array(self.edges)).astype(np.float64)
        reached[np.isnan(filled)] = np.nan
        return reached


def look_up(values: Floats, categories: tuple[str, ...], numbers: Mapping[str, int], other: int) -> Floats:
    """Replace each row's text by the number that a transform has assigned to that text.

    Args:
        values: the position (m,) of each row's text in `categories`; NaN if the text is missing.
        categories: the distinct texts.
        numbers: the number assigned to each text that the training had; the key MISSING is for missing texts.
        other: the number assigned to all remaining texts.

    Returns:
        The numbers (m,).
    """
    by_position = np.array([numbers.get(text, other) for text in (*categories, MISSING_CATEGORY)], np.float64)
    return by_position[np.where(np.isnan(values), len(categories), values).astype(np.intp)]


class GroupedTexts(ColumnTransform):
    """A transform of a text column in which several texts may form a group that counts as one category.

    Attributes:
        groups: the texts of each group that the user declared. A group's category is named by `group_name`.
    """

    groups: Groups = ()

    def texts_of(self, category: str) -> tuple[str, ...]:
        """Return the texts of one category: those of the declared group with this name, or the text itself."""
        return {group_name(group): group for group in self.groups}.get(category, (category,))

    @property
    def known_texts(self) -> frozenset[str]:
        """The texts that are a category or belong to a declared group. All other texts are rare, or new."""
        named = (*getattr(self, "categories", ()), *([base] if (base := getattr(self, "base", None)) else []))
        return frozenset(text for category in named for text in self.texts_of(category))

    def numbers_of(self, categories: Sequence[str], first: int = 0) -> dict[str, int]:
        """Number the categories from `first` on, and return the number of each of their texts."""
        return {text: number for number, category in enumerate(categories, first) for text in self.texts_of(category)}


class OneHotTransform(GroupedTexts):
    """A text column as 0/1 columns.

    Attributes:
        base: the most frequent category. It has no column: in its rows all the columns are 0.
        categories: the categories that have a column.
        other: True if there is a further column for all texts outside `base` and `categories`.
    """

    name: ClassVar[str] = "texts"
    base: str
    categories: tuple[str, ...]
    other: bool = False

    @property
    def features(self) -> list[str]:
        """The names of the resulting columns."""
        return [f"{self.column}={text}" for text in (*self.categories, *([OTHER_CATEGORY] if self.other else []))]

    def apply(self, values: Floats, categories: tuple[str, ...]) -> Floats:
        """Encode a column as 0/1 columns. Unknown texts are treated as rare ones, or as `base` if no text is rare."""
        numbers = self.numbers_of(self.categories) | dict.fromkeys(self.texts_of(self.base), -1)
        codes = look_up(values, categories, numbers, len(self.categories) if self.other else -1)
        return (codes[:, None] == np.arange(len(self.categories) + self.other)).astype(np.float64)


class CodeTransform(GroupedTexts):
    """A text column as integers: 1, 2 ... for the `categories`, 0 for rare and unknown texts."""

    name: ClassVar[str] = "codes"
    categories: tuple[str, ...]

    def apply(self, values: Floats, categories: tuple[str, ...]) -> Floats:
        """Return the integer code of each row's text (m, 1)."""
        return look_up(values, categories, self.numbers_of(self.categories, 1), 0)[:, None]
