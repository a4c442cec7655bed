"""What becomes of one column before it is scaled: one step a column, kept as plain numbers in a party's part.

number   filled where it is missing, clipped, and beside it a 0/1 column that says where it was missing
bins     a 0/1 column for each stretch between quantiles but the lowest
texts    a 0/1 column for each level but the commonest; rare levels share one
codes    one column of whole numbers, which name the levels from the commonest on, for tables of embeddings

A step is fitted on training rows alone and applied to all others as it is. Weights of evidence are another kind
(`securevfl.data.evidence`); adding one is a class and a name in `securevfl.data.preparation.STEPS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import pairwise
from typing import ClassVar

import numpy as np

from securevfl.config import Named
from securevfl.crypto.scheme import Floats

OTHER = "(other)"  # the level that rare and unknown texts share
MISSING = "(missing)"


class Step(Named, ABC):
    """What becomes of `column`."""

    column: str

    @property
    @abstractmethod
    def features(self) -> list[str]:
        """The names of the k columns that it makes."""

    @abstractmethod
    def apply(self, values: Floats, levels: tuple[str, ...]) -> Floats:
        """These k columns (m x k) of a column (m,) as `securevfl.data.columns` holds it, with the levels of its texts.

        NaN stays where a value is missing that was never missing in the training.
        """


class Number(Step):
    """A column of numbers. `fill` stands for what is missing (None if nothing was), `low` and `high` are its ends where
    it is clipped, and `indicator` adds the column that says where it was missing."""

    name: ClassVar[str] = "number"
    fill: float | None = None
    indicator: bool = False
    low: float | None = None
    high: float | None = None

    @property
    def features(self) -> list[str]:
        return [self.column, *([f"{self.column}={MISSING}"] if self.indicator else [])]

    def apply(self, values: Floats, levels: tuple[str, ...]) -> Floats:
        lacks = np.isnan(values)
        filled = values if self.fill is None else np.where(lacks, self.fill, values)
        if self.low is not None or self.high is not None:
            filled = np.clip(filled, self.low, self.high)
        return np.column_stack([filled, lacks]) if self.indicator else filled[:, None]


class Bins(Step):
    """A column of numbers parted at rising `edges`: bin i holds edges[i - 1] <= value < edges[i]; else as `Number`."""

    name: ClassVar[str] = "bins"
    edges: tuple[float, ...]
    fill: float | None = None
    indicator: bool = False

    @property
    def features(self) -> list[str]:
        ends = [*self.edges, float("inf")]
        bins = [f"{self.column}=[{low:.6g}, {high:.6g})" for low, high in pairwise(ends)]
        return [*bins, *([f"{self.column}={MISSING}"] if self.indicator else [])]

    def apply(self, values: Floats, levels: tuple[str, ...]) -> Floats:
        lacks = np.isnan(values)
        filled = values if self.fill is None else np.where(lacks, self.fill, values)
        place = np.searchsorted(np.array(self.edges), filled, side="right")
        found = (place[:, None] == np.arange(1, len(self.edges) + 1)).astype(np.float64)
        found[np.isnan(filled)] = np.nan
        return np.column_stack([found, lacks]) if self.indicator else found


class Texts(Step):
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
        place = {level: at for at, level in enumerate(self.levels)}
        unknown = len(self.levels) if self.other else -1
        known = np.array([-1 if text == self.base else place.get(text, unknown) for text in (*levels, MISSING)])
        own = known[np.where(np.isnan(values), len(levels), values).astype(np.intp)]
        found: Floats = (own[:, None] == np.arange(len(self.levels) + self.other)).astype(np.float64)
        return found


class Codes(Step):
    """A column of texts as whole numbers: 1, 2 ... for those of `levels`, 0 for rare and unknown ones."""

    name: ClassVar[str] = "codes"
    levels: tuple[str, ...]

    @property
    def features(self) -> list[str]:
        return [self.column]

    def apply(self, values: Floats, levels: tuple[str, ...]) -> Floats:
        place = {level: at for at, level in enumerate(self.levels, 1)}
        known = np.array([place.get(text, 0) for text in (*levels, MISSING)], np.float64)
        found: Floats = known[np.where(np.isnan(values), len(levels), values).astype(np.intp)][:, None]
        return found
