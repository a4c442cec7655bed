"""How each party makes numbers of its own columns: fitted on its training rows, kept in its part, applied to new rows.

    missing numbers   the median of the column, and a 0/1 column that says where it was filled in
    dates             days since 1970-01-01, with month and weekday where these vary
    texts             one-hot: a 0/1 column for each level but the commonest, one for all rare ones together; or
                      whole numbers, which no scaling touches, for a module that looks them up in tables
    heavy tails       squashed: columns with values MIN_TAIL_DISTANCE quartile distances away become asinh((x -
    median) / spread)
    outliers          clipped at quantiles, if the job says so
    bins              0/1 columns between quantiles, if the job says so
    evidence          or each column's values become what their bin says of the label (`securevfl.data.woe`)

Nothing of it leaves a party but how many columns come out, which everyone learns in the meeting; for evidence a party
without labels is told the classes in each of its bins. A table of numbers
without gaps stays as it is. What comes out is what is counted, guarded and summed: 0/1 columns are easier to find than
others (`securevfl.disclosure.column_recovery`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from securevfl.base.arrays import Floats, SerializableFields
from securevfl.base.config import Config, Registry, read_nested, to_plain
from securevfl.data.bin_edges import edges_of
from securevfl.data.column_transforms import (
    MISSING,
    OTHER,
    BinTransform,
    CodeTransform,
    ColumnTransform,
    DateTransform,
    NumericTransform,
    OneHotTransform,
    part_of_date,
)
from securevfl.data.columns import Columns
from securevfl.data.location_scale import QUARTILES
from securevfl.data.schedule import Rows
from securevfl.data.validation import some
from securevfl.data.woe import CategoricalWoe, NumericWoe, Woe, WoeTransform, number_bins, text_bins
from securevfl.errors import DataNotice, TableError

PARTS: tuple[Literal["month", "weekday"], ...] = ("month", "weekday")  # of a date
LEAST = 5  # training rows that share what gets a column of its own
_TOGETHER = 8  # columns that are read together: a line of the cache
_LOOKED, _BETWEEN = 1000, (0.3, 0.7)  # values of a column, and their quantiles, that mostly show it has no heavy tails
MIN_TAIL_DISTANCE = (
    20  # distances of the quartiles, by which a value lies so far out that it alone would set a column's scale
)

TRANSFORMS: Registry[ColumnTransform] = Registry(
    "step", NumericTransform, DateTransform, BinTransform, OneHotTransform, CodeTransform, NumericWoe, CategoricalWoe
)


class Preparation(Config):
    """What all parties do to their columns."""

    drop: tuple[str, ...] = ()
    """Columns, of whichever party has them, that take no part."""
    missing: Literal["indicator", "fill", "refuse"] = "indicator"
    """Missing numbers get the median of their column, with a 0/1 column that says where or without, or are refused."""
    texts: Literal["one_hot", "codes", "refuse"] = "one_hot"
    """Texts become 0/1 columns, one for each value but the commonest, or one column of codes for tables of embeddings
    (1 is the commonest value, 0 all rare and unknown ones), or are refused."""
    rare: float = Field(default=0.005, ge=0, lt=0.5)
    """Share of the training rows below which values of a text share one 0/1 column or code."""
    tails: Literal["squash", "keep"] = "squash"
    """Columns of numbers with values 20 times the distance of their quartiles from the median are squashed by asinh,
    which is straight around the median and grows like a logarithm far out, or kept as they are."""
    clip: float | None = Field(default=None, gt=0, lt=0.5)
    """Share of the training rows at either end of a column of numbers; what is beyond is set to that quantile."""
    bins: int | None = Field(default=None, ge=2, le=1000)
    """Each column of numbers becomes 0/1 columns of about so many bins between quantiles, and of values that stand by
    themselves, such as few different ones, 0, or codes like 96 and 98. On shares in place of woe."""
    woe: Woe | None = None
    """Each column becomes one of weights of evidence: what a value's bin says of the label, of two classes."""

    @field_validator("woe", mode="before")
    @classmethod
    def _read_woe(cls, value: Any) -> Any:
        return read_nested(Woe, value)

    @model_validator(mode="after")
    def _check_woe(self) -> Preparation:
        other = self.clip is not None or self.bins is not None or self.texts == "codes"
        if self.woe is not None and other:
            raise ValueError("woe: parts columns into bins of its own; leave clip, bins and codes out")
        return self


@dataclass(frozen=True)
class SourceColumn(SerializableFields):
    """A column as it was, by the places of what was made of it: of its number, or of the 0/1 columns of its texts.

    missing: the place of the column that says where it was missing, if there is one. levels: its texts, the one without
    a column first; empty for numbers.
    """

    name: str
    at: tuple[int, ...]
    missing: int | None = None
    levels: tuple[str, ...] = ()


@dataclass(frozen=True)
class FittedPreparation:
    """What was fitted: the columns as they come, in order, and a step for each; no steps leave them as they are.

    coded, parted: those that hold codes, or 0/1 of bins, as they come.
    """

    columns: list[str]
    steps: tuple[ColumnTransform, ...] = ()
    coded: tuple[str, ...] = ()
    parted: tuple[str, ...] = ()

    @property
    def features(self) -> list[str]:
        """The names of the columns that come out (d)."""
        return [name for step in self.steps for name in step.features] if self.steps else self.columns

    @property
    def texts(self) -> list[str]:
        """Those of the columns that hold texts."""
        return [
            step.column for step in self.steps if isinstance(step, OneHotTransform | CodeTransform | CategoricalWoe)
        ]

    @property
    def sources(self) -> list[SourceColumn]:
        """What was a number or a text before, among the columns that come out; each bin is by itself."""
        if not self.steps:
            return [SourceColumn(name, (j,)) for j, name in enumerate(self.columns)]
        found, place = list[SourceColumn](), 0
        for step in self.steps:
            at = tuple(range(place, place + len(step.features)))
            place += len(at)
            if isinstance(step, OneHotTransform):
                rest = (OTHER,) if step.other else ()
                found += [SourceColumn(step.column, at, levels=(step.base, *step.levels, *rest))] if at else []
            elif isinstance(step, NumericTransform | DateTransform):
                numbers, missing = (at[:-1], at[-1]) if step.indicator else (at, None)
                found += [SourceColumn(name, (j,), missing) for j, name in zip(numbers, step.features, strict=False)]
            else:
                found += [SourceColumn(name, (j,)) for j, name in zip(at, step.features, strict=True)]
        return found

    @property
    def information(self) -> dict[str, float]:
        """The information value of each column, where these were weighed (`securevfl.data.woe`)."""
        return {step.column: step.iv for step in self.steps if isinstance(step, WoeTransform) and step.weights}

    def weigh(self, places: Floats) -> Floats:
        """Replace the numbers of bins (m x d) by the weights of evidence of these bins (m x d)."""
        steps = [step for step in self.steps if isinstance(step, WoeTransform)]
        return np.column_stack([step.weigh(place) for step, place in zip(steps, places.T, strict=True)])

    @property
    def codes(self) -> tuple[str, ...]:
        """Those of the columns that come out which hold codes, and are not to be scaled."""
        return self.coded + tuple(step.column for step in self.steps if isinstance(step, CodeTransform))

    @property
    def stepped(self) -> tuple[str, ...]:
        """Those of the columns that come out which are of bins, and all have one scale."""
        return self.parted + tuple(
            name for step in self.steps if isinstance(step, BinTransform) for name in step.features
        )

    @property
    def done(self) -> FittedPreparation:
        """What leaves the columns that come out as they are."""
        return FittedPreparation(self.features, coded=self.codes, parted=self.stepped)

    def apply(self, own: Columns) -> Floats:
        """Return the prepared columns (m x d); NaN stands where a value is missing in a column that had none missing in
        the training.

        TableError names a column that holds texts where the training had numbers, or numbers where it had texts.
        """
        texts = set(self.texts)
        wrong = [name for name in own.levels if name not in texts]
        if not self.steps and not wrong:
            return own.X
        wrong += [
            step.column
            for j, step in enumerate(self.steps)
            if step.column in texts and step.column not in own.levels and not np.isnan(own.X[:, j]).all()
        ]
        if wrong:
            raise TableError(
                f"columns of the kinds of the training were expected, {', '.join(wrong[:5])} changed between numbers "
                "and texts; bring these columns as they were"
            )
        return np.column_stack(
            [step.apply(own.X[:, j], own.levels.get(step.column, ())) for j, step in enumerate(self.steps)]
        )

    def plain(self) -> list[dict[str, Any]]:
        """Return the steps as values that JSON can hold."""
        return [to_plain(step) for step in self.steps]

    @classmethod
    def read(cls, columns: list[str], steps: Sequence[Any]) -> FittedPreparation:
        """Read a preparation of these columns from its steps as `to_plain` returned them.

        Raises ValueError or ConfigError
        if they are not of that form."""
        return cls(columns, tuple(TRANSFORMS.read(step) for step in steps))


def fit(name: str, own: Columns, train: Rows, options: Preparation) -> FittedPreparation:
    """Fit the preparation of the columns of party `name` on its training rows. TableError names columns that it can't
    use."""
    gaps = np.atleast_1d(np.isnan(own.X).any(axis=0))
    numbers = [column for column, lacks in zip(own.names, gaps, strict=True) if lacks and column not in own.levels]
    _check_refused(name, numbers if options.missing == "refuse" else [], "missing numbers", "fill them")
    texts = list(own.levels) if options.texts == "refuse" else []
    _check_refused(name, texts, "texts", "encode them as numbers")
    heavy = _heavy(own, train, options)
    if heavy:
        notice = f"party {name}: columns with values far out are squashed by asinh: {some(heavy)}"
        warnings.warn(f'{notice}; prepare.tails = "keep" leaves them as they are', DataNotice, stacklevel=2)
    parted = any(each is not None for each in (options.clip, options.bins, options.woe))
    if not (gaps.any() or own.levels or own.dates or heavy or parted):
        return FittedPreparation(own.names)
    X, steps = own.X[train], list[ColumnTransform]()
    for column, values, lacks in zip(own.names, X.T, gaps.tolist(), strict=True):
        if np.isnan(values).all():
            raise TableError(
                f"party {name}: values among the training rows were expected, column {column} has none; drop it"
            )
        if column in own.levels:
            counts = level_counts(values, own.levels[column])
            step = text_bins(column, counts, options.woe) if options.woe else _texts(name, column, counts, options)
        elif options.woe is not None:
            step = number_bins(column, values, lacks, options.woe)
        else:
            step = _number(column, values, lacks, options, date=column in own.dates, squash=column in heavy)
        steps.append(step)
    prepared = FittedPreparation(own.names, tuple(steps))
    if not prepared.features:
        raise TableError(f"party {name}: columns that vary were expected, none does in its training rows; add columns")
    return prepared


def _heavy(own: Columns, train: Rows, options: Preparation) -> list[str]:
    """Find the columns of numbers that are to be squashed, because their training rows have heavy tails; empty where
    the options leave tails as they are."""
    found = list[str]()
    if options.tails == "keep" or any(each is not None for each in (options.clip, options.bins, options.woe)):
        return found
    for start in range(0, len(own.names), _TOGETHER):
        some = slice(start, start + _TOGETHER)
        columns = np.ascontiguousarray(own.X[train, some].T)  # side by side in memory, as all that follows reads them
        for column, values in zip(own.names[some], columns, strict=True):
            if column in own.levels or column in own.dates:
                continue
            lacks = np.isnan(values)
            present = values[~lacks] if lacks.any() else values
            if len(present) and _heavy_tailed(present):
                found.append(column)
    return found


def _heavy_tailed(values: Floats) -> bool:
    """Whether any of the values (m,) lies so far from the median that its column is squashed."""
    first, last = np.quantile(values[:: max(1, len(values) // _LOOKED)], _BETWEEN).tolist()
    within = min(int((values <= first).sum()), int((values >= last).sum())) > len(values) / 4 + 1
    if within and (MIN_TAIL_DISTANCE - 1) * (last - first) > values.max() - values.min():
        return False  # the quartiles are further apart than these two, and no value is further from the median
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
    return bool(0 < MIN_TAIL_DISTANCE * (high - low) < np.abs(values - median).max())


def _check_refused(name: str, columns: Sequence[str], what: str, remedy: str) -> None:
    if columns:
        raise TableError(
            f"party {name}: this job takes no {what}, they are in {some(columns)}; {remedy}, or let the job prepare "
            "them"
        )


def _number(
    column: str, values: Floats, gaps: bool, options: Preparation, *, date: bool, squash: bool
) -> ColumnTransform:
    """Fit the step of a column of numbers, or of dates in days since 1970-01-01, on the values of its training rows.
    gaps: whether any row lacks the value. squash: whether the column has heavy tails that are squashed."""
    lacks = np.isnan(values)
    present, least = values[~lacks], max(LEAST, options.rare * len(values))
    marked = bool(options.missing == "indicator" and least <= lacks.sum() <= len(values) - least)
    filling: dict[str, Any] = {"fill": float(np.median(present)) if gaps else None, "indicator": marked}
    if date:
        parts = tuple(part for part in PARTS if len(np.unique(part_of_date(part, present))) > 1)
        return DateTransform(column=column, parts=parts, **filling)
    if options.bins is not None and (edges := edges_of(present, options.bins)):
        return BinTransform(column=column, edges=tuple(edges), **filling)
    if squash:
        first, centre, last = np.quantile(present, [0.25, 0.5, 0.75]).tolist()
        return NumericTransform(column=column, centre=centre, spread=(last - first) / QUARTILES, **filling)
    low, high = np.quantile(present, [options.clip or 0, 1 - (options.clip or 0)]).tolist()
    clips = options.clip is not None and low < high  # a column that is nearly constant would lose all it says
    return NumericTransform(column=column, low=low if clips else None, high=high if clips else None, **filling)


def level_counts(values: Floats, levels: tuple[str, ...]) -> dict[str, int]:
    """How many rows have each level; a missing text is a level like others."""
    place = np.where(np.isnan(values), len(levels), values).astype(np.intp)
    return dict(zip((*levels, MISSING), np.bincount(place, minlength=len(levels) + 1).tolist(), strict=True))


def _texts(name: str, column: str, counts: Mapping[str, int], options: Preparation) -> ColumnTransform:
    """Fit the step of a column of texts on the number of training rows at each level. Raises TableError if no level is
    frequent enough."""
    rows = sum(counts.values())
    least = max(LEAST, options.rare * rows)
    kept = [level for level, count in counts.items() if count >= least]
    kept.sort(key=lambda level: (-counts[level], level))
    if not kept:
        raise TableError(
            f"party {name}: texts that rows share were expected, no value of column {column} is in {least:.0f} of its "
            "training rows; drop it, or encode it as numbers"
        )
    if options.texts == "codes":
        return CodeTransform(column=column, levels=tuple(kept))
    rare = rows - sum(counts[level] for level in kept)
    other = rare >= LEAST
    return OneHotTransform(column=column, base=kept[0], levels=tuple(sorted(kept[1:])), other=other)
