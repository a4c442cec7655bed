"""Preparation of a party's columns: fitted to its training rows, stored in its part of the model, applied to new rows.

Each original column becomes one or more *prepared* columns of numbers:
    missing numbers   the median of the column, and a 0/1 column that marks where it was filled in
    special codes     (numbers with a meaning, such as -999) the same, with a 0/1 column for each declared code
    dates             days since 1970-01-01, with month and weekday if these vary
    texts             one-hot encoding, rare categories together; or integer codes for embedding tables
    heavy tails       asinh((x - median) / spread) if values are far from the quartiles (MIN_TAIL_DISTANCE)
    options of a job  outliers clipped at quantiles; bins as 0/1 columns, or as weights of evidence (data/woe.py)

Other parties learn the number of prepared columns, and with weights of evidence the classes in each bin. Disclosures
are counted for the prepared columns, because 0/1 columns are easier to reconstruct (`securevfl.disclosure`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from securevfl.base.arrays import Floats, SerializableFields
from securevfl.base.config import Config, Registry, read_nested, to_plain
from securevfl.data.bin_edges import find_bin_edges
from securevfl.data.column_transforms import (
    MISSING_CATEGORY,
    OTHER_CATEGORY,
    BinTransform,
    CodeTransform,
    ColumnTransform,
    DateTransform,
    NumericTransform,
    OneHotTransform,
    SpecialCodes,
    code_columns,
    is_ordinary,
    part_of_date,
)
from securevfl.data.column_types import ColumnType, Edges, Kind, Types
from securevfl.data.columns import Columns
from securevfl.data.declared_bins import (
    MIN_DECLARED_ROWS,
    check_bin_rows,
    count_in_bins,
    declared_text_columns,
    declared_text_woe,
    declared_woe_bins,
)
from securevfl.data.external_table import ExternalTable, row_blocks
from securevfl.data.location_scale import QUARTILES
from securevfl.data.schedule import Rows
from securevfl.data.validation import name_list
from securevfl.data.woe import CategoricalWoe, NumericWoe, Woe, WoeTransform, number_bins, text_bins
from securevfl.errors import DataNotice, TableError

DATE_PARTS: tuple[Literal["month", "weekday"], ...] = ("month", "weekday")
MIN_FEATURE_ROWS = 5
"""Minimum number of training rows in which a 0/1 column must be 1."""
MIN_TAIL_DISTANCE = 20
"""A column has heavy tails if a value is further than this many interquartile ranges from the median; such a value
alone would determine the standard deviation."""
MAX_COLUMN_BYTES = 64 << 20
"""Number of bytes of columns that are read from disk at a time."""
_COLUMNS_PER_READ = 8  # columns read at a time, because 8 float64 numbers of a row fill one cache line
# a quick check: these two quantiles of at most this many values usually prove that a column has no heavy tails
_PROBED_VALUES, _PROBED_QUANTILES = 1000, (0.3, 0.7)

TRANSFORMS: Registry[ColumnTransform] = Registry(
    "step",
    NumericTransform,
    DateTransform,
    BinTransform,
    OneHotTransform,
    CodeTransform,
    NumericWoe,
    CategoricalWoe,
)


class Preparation(Config):
    """A job's options for the preparation of columns. All parties use the same ones."""

    drop: tuple[str, ...] = ()
    """Columns of any party that are left out."""
    missing: Literal["indicator", "fill", "refuse"] = "indicator"
    """What happens to missing numbers: they get the median of the column, with a 0/1 column that marks them
    (indicator) or without (fill), or are refused."""
    texts: Literal["one_hot", "codes", "refuse"] = "one_hot"
    """What happens to texts: they become 0/1 columns, one for each category but the most frequent (one_hot), or one
    column of codes for embedding tables (1 is the most frequent category, 0 all rare and unknown ones), or are
    refused."""
    rare: float = Field(default=0.005, ge=0, lt=0.5)
    """Share of the training rows below which the categories of a text column share one 0/1 column or code."""
    tails: Literal["squash", "keep"] = "squash"
    """What happens to numeric columns with values more than 20 interquartile ranges from the median: they are squashed
    by asinh, which is linear around the median and logarithmic far from it, or kept as they are."""
    clip: float | None = Field(default=None, gt=0, lt=0.5)
    """Share of the training rows at either end of a numeric column; values beyond that quantile are set to it."""
    bins: int | None = Field(default=None, ge=2, le=1000)
    """One-hot encode numeric columns into about this many quantile bins. Frequent single values, 0, and isolated codes
    such as 96 and 98 get bins of their own. On secret shares this replaces woe."""
    woe: Woe | None = None
    """Replace each column by its weights of evidence, for labels of two classes."""

    @field_validator("woe", mode="before")
    @classmethod
    def _read_woe(cls, value: Any) -> Any:
        return read_nested(Woe, value)

    @model_validator(mode="after")
    def _check_woe(self) -> Preparation:
        other = self.clip is not None or self.bins is not None or self.texts == "codes"
        if self.woe is not None and other:
            raise ValueError("woe: divides columns into bins itself; leave out clip, bins and codes")
        return self


@dataclass(frozen=True)
class SourceColumn(SerializableFields):
    """An original column, and the positions of the prepared columns that were derived from it.

    Attributes:
        name: the name of the column.
        at: positions of the prepared columns that hold its values: its number, or the 0/1 columns of its texts.
        missing: position of the column that marks missing values, if there is one.
        categories: the texts, beginning with the one that has no 0/1 column; empty for numeric columns.
    """

    name: str
    at: tuple[int, ...]
    missing: int | None = None
    categories: tuple[str, ...] = ()


@dataclass(frozen=True)
class FittedPreparation:
    """A preparation that was fitted to training rows: one transform for each original column.

    Attributes:
        columns: the names of the original columns, in order.
        steps: a transform for each column; empty if no column is changed.
        coded: names of original columns that contained integer codes of texts before the preparation.
        binned: names of original columns that were 0/1 columns of bins before the preparation.
        decided: the types of the original columns, which the reader of the table decided.
    """

    columns: list[str]
    steps: tuple[ColumnTransform, ...] = ()
    coded: tuple[str, ...] = ()
    binned: tuple[str, ...] = ()
    decided: Types = field(default_factory=dict)

    @property
    def features(self) -> list[str]:
        """The names of the d prepared columns."""
        return [name for step in self.steps for name in step.features] if self.steps else self.columns

    @property
    def width(self) -> int:
        """The number of prepared columns."""
        return len(self.features)

    @property
    def has_evidence(self) -> bool:
        """Whether columns become weights of evidence, which are computed later from class counts of their bins."""
        return any(isinstance(step, WoeTransform) for step in self.steps)

    @property
    def texts(self) -> list[str]:
        """The names of the original columns that contain texts."""
        return [
            step.column for step in self.steps if isinstance(step, OneHotTransform | CodeTransform | CategoricalWoe)
        ]

    @property
    def types(self) -> dict[str, ColumnType]:
        """The types of the original columns. Tables with new rows are read with the same types."""
        dates = {step.column for step in self.steps if isinstance(step, DateTransform)}
        types: dict[str, ColumnType] = {}
        for name in self.columns:
            kind: Kind = "category" if name in self.texts else "date" if name in dates else "number"
            decided = self.decided.get(name)
            types[name] = ColumnType(type=kind, origin="file") if decided is None else decided
        return types

    @property
    def sources(self) -> list[SourceColumn]:
        """For each original column, the positions of its prepared columns: its own position if no column is changed."""
        if not self.steps:
            return [SourceColumn(name, (j,)) for j, name in enumerate(self.columns)]
        sources, position = list[SourceColumn](), 0
        for step in self.steps:
            at = tuple(range(position, position + len(step.features)))
            position += len(at)
            if isinstance(step, OneHotTransform):
                other = (OTHER_CATEGORY,) if step.other else ()
                categories = (step.base, *step.categories, *other)
                sources += [SourceColumn(step.column, at, categories=categories)] if at else []
            elif isinstance(step, NumericTransform | DateTransform):
                numbers, missing = (at[:-1], at[-1]) if step.indicator else (at, None)
                marks = range(len(numbers) - len(step.marked), len(numbers))
                sources += [
                    SourceColumn(name, (j,), None if index in marks else missing)
                    for index, (j, name) in enumerate(zip(numbers, step.features, strict=False))
                ]
            else:
                sources += [SourceColumn(name, (j,)) for j, name in zip(at, step.features, strict=True)]
        return sources

    @property
    def information_values(self) -> dict[str, float]:
        """The information value of each column with weights of evidence."""
        return {step.column: step.iv for step in self.steps if isinstance(step, WoeTransform) and step.weights}

    def weigh(self, bin_numbers: Floats) -> Floats:
        """Return the weights of evidence (m, d) of m rows of d columns, given the index of each value's bin (m, d)."""
        steps = [step for step in self.steps if isinstance(step, WoeTransform)]
        return np.column_stack([step.weigh(numbers) for step, numbers in zip(steps, bin_numbers.T, strict=True)])

    @property
    def codes(self) -> tuple[str, ...]:
        """The names of the prepared columns that contain codes, which must not be scaled."""
        return self.coded + tuple(step.column for step in self.steps if isinstance(step, CodeTransform))

    @property
    def bin_features(self) -> tuple[str, ...]:
        """The names of the prepared 0/1 columns of bins, which all have the same scale."""
        return self.binned + tuple(
            name for step in self.steps if isinstance(step, BinTransform) for name in step.features
        )

    @property
    def identity(self) -> FittedPreparation:
        """A preparation that leaves these prepared columns unchanged, for a table that is already prepared."""
        return FittedPreparation(self.features, coded=self.codes, binned=self.bin_features)

    def apply(self, table: Columns) -> Floats:
        """Prepare the columns of a table.

        Args:
            table: the original columns.

        Returns:
            The prepared columns (m, d). NaN remains in a column that had no missing value in training.

        Raises:
            TableError: if a column holds texts and held numbers in training, or the other way round.
        """
        texts = set(self.texts)
        wrong = [name for name in table.categories if name not in texts]
        if not self.steps and not wrong:
            return table.X
        wrong += [
            step.column
            for j, step in enumerate(self.steps)
            if step.column in texts and step.column not in table.categories and not np.isnan(table.X[:, j]).all()
        ]
        if wrong:
            raise TableError(
                f"columns changed between numbers and texts since the training: {name_list(wrong)}",
                "bring these columns with the type that they had in training",
                code="SVFL-TABLE-TYPE",
                columns=wrong,
            )
        X, start = np.empty((len(table.X), self.width)), 0
        for j, step in enumerate(self.steps):  # one column at a time, so that no second copy of the table is needed
            values = step.apply(table.X[:, j], table.categories.get(step.column, ()))
            X[:, start : start + values.shape[1]] = values
            start += values.shape[1]
        return X

    def plain(self) -> list[dict[str, Any]]:
        """Return the transforms as lists and dicts that can be written as JSON."""
        return [to_plain(step) for step in self.steps]

    def plain_types(self) -> dict[str, Any]:
        """Return the types of the original columns as dicts that can be written as JSON."""
        return {name: kind.model_dump(exclude_defaults=True, mode="json") for name, kind in self.decided.items()}

    @classmethod
    def read(
        cls, columns: list[str], steps: Sequence[Any], types: Mapping[str, Any] | None = None
    ) -> FittedPreparation:
        """Create a preparation of these columns from the return values of `plain` and `plain_types`.

        ValueError or ConfigError if they are not of that form.
        """
        decided = {name: ColumnType(**kind) for name, kind in (types or {}).items()}
        transforms = tuple(TRANSFORMS.read(step) for step in steps)
        names = isinstance(columns, list) and all(isinstance(name, str) for name in columns)
        if not names or not all(isinstance(step, ColumnTransform) for step in transforms):
            raise ValueError("a name of a column is not a text, or a step is not a transform")
        return cls(columns, transforms, decided=decided)


def fit_preparation(name: str, table: Columns, train: Rows, options: Preparation) -> FittedPreparation:
    """Fit a preparation on training rows.

    Args:
        name: name of the party, which error messages state.
        table: the columns of all rows.
        train: the training rows.
        options: the job's options for the preparation of columns.

    Returns:
        The fitted preparation.

    Raises:
        TableError: if a column cannot be used.
    """
    decided = {column: table.type_of(column) for column in table.names}
    gaps = _find_gaps(table.X)
    numeric = [column for column, missing in zip(table.names, gaps, strict=True) if missing]
    numeric = [column for column in numeric if column not in table.categories]
    if options.missing == "refuse" and numeric:
        raise TableError(
            f"party {name}: this job does not accept missing numbers, which {name_list(numeric)} contain",
            "fill them, or let the job prepare them",
            code="SVFL-TABLE-MISSING-VALUES",
            party=name,
            columns=numeric,
        )
    if options.texts == "refuse" and table.categories:
        raise TableError(
            f"party {name}: this job does not accept texts, which {name_list(list(table.categories))} contain",
            "encode them as numbers, or let the job prepare them",
            code="SVFL-TABLE-TYPE",
            party=name,
            columns=list(table.categories),
        )
    heavy = _heavy_tailed_columns(table, train, options)
    if heavy:
        notice = f"party {name}: columns with extreme values are squashed by asinh: {name_list(heavy)}"
        warnings.warn(f'{notice}; prepare.tails = "keep" leaves them as they are', DataNotice, stacklevel=2)
    transformed = any(option is not None for option in (options.clip, options.bins, options.woe))
    special = {column: codes for column in table.names if (codes := table.special_codes(column))}
    binned = any(kind.bins for kind in decided.values())
    if not (gaps.any() or table.categories or table.dates or heavy or transformed or special or binned):
        return FittedPreparation(table.names, decided=decided)
    steps = list[ColumnTransform]()
    for j, values in read_columns(table.X, train, range(len(table.names))):
        column, has_gaps = table.names[j], bool(gaps[j])
        codes = special.get(column, ())
        if not is_ordinary(values, codes).any():
            other = " other than special codes" if codes else ""
            raise TableError(
                f"party {name}: column {column!r} has no values{other} in the training rows",
                code="SVFL-TABLE-EMPTY-COLUMN",
                party=name,
                column=column,
            )
        kind = decided[column]
        if column in table.categories:
            step = _fit_texts(name, kind, column, category_counts(values, table.categories[column]), options)
        elif options.woe is not None:
            step = _fit_evidence(name, kind.edges, column, values, options.woe, gaps=has_gaps, codes=codes)
        else:
            filling = _fit_filling(values, has_gaps, codes, options)
            present = values[is_ordinary(values, codes)]
            if kind.edges:
                check_bin_rows(name, column, count_in_bins(present, kind.edges), MIN_DECLARED_ROWS)
                step = BinTransform(column=column, edges=kind.edges, **filling)
            else:
                is_date, squash = column in table.dates, column in heavy
                step = _fit_number(column, present, filling, options, date=is_date, squash=squash)
        steps.append(step)
    prepared = FittedPreparation(table.names, tuple(steps), decided=decided)
    if not prepared.features:
        raise TableError(
            f"party {name}: no column varies in the training rows",
            "add columns that vary",
            code="SVFL-TABLE-CONSTANT",
            party=name,
        )
    return prepared


def _heavy_tailed_columns(table: Columns, train: Rows, options: Preparation) -> list[str]:
    """Return the numeric columns whose training rows have heavy tails; none if the job's options keep tails."""
    if options.tails == "keep" or any(option is not None for option in (options.clip, options.bins, options.woe)):
        return []
    numeric = [j for j, name in enumerate(table.names) if name not in table.categories and name not in table.dates]
    numeric = [j for j in numeric if not table.type_of(table.names[j]).edges]
    X: Floats | ExternalTable = table.X
    codes = {j: table.special_codes(table.names[j]) for j in numeric}
    if isinstance(X, ExternalTable):
        plain = _suspected_tails(X, train, [j for j in numeric if not codes[j]])
        numeric = sorted([*plain, *(j for j in numeric if codes[j])])
    columns = list[str]()
    for j, values in read_columns(X, train, numeric):
        present = values[is_ordinary(values, codes[j])]
        if len(present) and _is_heavy_tailed(present):
            columns.append(table.names[j])
    return columns


def _find_gaps(X: Floats | ExternalTable) -> NDArray[np.bool_]:
    """Return whether each column (d,) has a missing value in any row, training row or not."""
    gaps = np.zeros(X.shape[1], bool)
    for block in row_blocks(X):
        gaps |= np.isnan(block).any(axis=0)
    return gaps


def read_columns(X: Floats | ExternalTable, rows: Rows, columns: Sequence[int]) -> Iterator[tuple[int, Floats]]:
    """Yield each column's position and its values (n,). Only _COLUMNS_PER_READ columns are in memory at a time."""
    step = max(1, MAX_COLUMN_BYTES // (8 * len(X))) if isinstance(X, ExternalTable) else _COLUMNS_PER_READ
    for start in range(0, len(columns), step):
        block = list(columns[start : start + step])
        if isinstance(X, ExternalTable):
            values = X.select(rows, block)
        elif block[-1] - block[0] == len(block) - 1:
            values = X[rows, block[0] : block[-1] + 1]
        else:
            values = X[np.ix_(rows, np.array(block))]
        yield from zip(block, np.ascontiguousarray(values.T), strict=True)


def _suspected_tails(X: ExternalTable, rows: Rows, columns: Sequence[int]) -> list[int]:
    """Return the columns that may have heavy tails, after one pass over the table has excluded most others."""
    if not columns:
        return []
    sample = X[rows[:: max(1, len(rows) // _PROBED_VALUES)]][:, columns]
    known = ~np.isnan(sample).all(axis=0)
    first, last = np.full((2, len(columns)), np.nan)
    first[known], last[known] = np.nanquantile(sample[:, known], _PROBED_QUANTILES, axis=0)
    counts = np.zeros((3, len(columns)), np.int64)
    low, high = np.full(len(columns), np.inf), np.full(len(columns), -np.inf)
    for block in X.blocks(rows):
        values = block[:, columns]
        counts += np.array([(values <= first).sum(axis=0), (values >= last).sum(axis=0), (~np.isnan(values)).sum(0)])
        low = np.fmin(low, np.fmin.reduce(values, axis=0, initial=np.inf))
        high = np.fmax(high, np.fmax.reduce(values, axis=0, initial=-np.inf))
    below, above, present = counts
    within = np.minimum(below, above) > present / 4 + 1
    proven = within & ((MIN_TAIL_DISTANCE - 1) * (last - first) > high - low)
    return [column for column, is_proven in zip(columns, proven.tolist(), strict=True) if not is_proven]


def _is_heavy_tailed(values: Floats) -> bool:
    """Return whether a value of a column (m,) is MIN_TAIL_DISTANCE or more interquartile ranges from the median."""
    first, last = np.quantile(values[:: max(1, len(values) // _PROBED_VALUES)], _PROBED_QUANTILES).tolist()
    within = min(int((values <= first).sum()), int((values >= last).sum())) > len(values) / 4 + 1
    if within and (MIN_TAIL_DISTANCE - 1) * (last - first) > values.max() - values.min():
        # more than a quarter of the values are <= first, and more than a quarter >= last. So the interquartile range is
        # at least last - first, and no value is far enough from the median
        return False
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
    return bool(0 < MIN_TAIL_DISTANCE * (high - low) < np.abs(values - median).max())


def _fit_filling(values: Floats, gaps: bool, codes: SpecialCodes, options: Preparation) -> dict[str, Any]:
    """Fit the numbers that replace missing values and special codes, and choose the 0/1 columns that mark them.

    Args:
        values: the values (n,) of the training rows.
        gaps: whether a value is missing in any row.
        codes: the special codes of the column.
        options: the job's options for the preparation of columns.

    Returns:
        Fields of an `ImputedTransform`.
    """
    min_rows = max(MIN_FEATURE_ROWS, options.rare * len(values))

    def varies(count: int) -> bool:
        return bool(min_rows <= count <= len(values) - min_rows)

    median = float(np.median(values[is_ordinary(values, codes)]))
    marked = options.missing == "indicator" and varies(int(np.isnan(values).sum()))
    filling: dict[str, Any] = {"fill": median if gaps else None, "indicator": marked}
    if codes:
        counts = code_columns(values, codes).sum(axis=0)
        frequent = [varies(int(count)) for count in counts]
        filling["marked"] = tuple(code for code, is_frequent in zip(codes, frequent, strict=True) if is_frequent)
        filling["unmarked"] = tuple(code for code, is_frequent in zip(codes, frequent, strict=True) if not is_frequent)
        filling["special_fill"] = median
    return filling


def _fit_number(
    column: str, present: Floats, filling: Mapping[str, Any], options: Preparation, *, date: bool, squash: bool
) -> ColumnTransform:
    """Fit the transform of a numeric column, or of a date column.

    Args:
        column: the name of the column.
        present: its values (m,) in the training rows, without missing ones and special codes.
        filling: the numbers that replace missing values and special codes (`_fit_filling`).
        options: the job's options for the preparation of columns.
        date: whether the column holds dates.
        squash: whether the column has heavy tails.

    Returns:
        The transform.
    """
    if date:
        parts = tuple(part for part in DATE_PARTS if len(np.unique(part_of_date(part, present))) > 1)
        return DateTransform(column=column, parts=parts, **filling)
    if options.bins is not None and (edges := find_bin_edges(present, options.bins)):
        return BinTransform(column=column, edges=tuple(edges), **filling)
    if squash:
        first, centre, last = np.quantile(present, [0.25, 0.5, 0.75]).tolist()
        return NumericTransform(column=column, centre=centre, spread=(last - first) / QUARTILES, **filling)
    low, high = np.quantile(present, [options.clip or 0, 1 - (options.clip or 0)]).tolist()
    # if low equals high, the column is almost constant, and clipping would make it constant
    clips = options.clip is not None and low < high
    return NumericTransform(column=column, low=low if clips else None, high=high if clips else None, **filling)


def category_counts(values: Floats, categories: tuple[str, ...]) -> dict[str, int]:
    """Return the number of rows of each category, including MISSING_CATEGORY for missing texts.

    Args:
        values: for each row (n,), the position of its text in `categories`; NaN if the text is missing.
        categories: the texts of the column.

    Returns:
        The number of rows by category.
    """
    positions = np.where(np.isnan(values), len(categories), values).astype(np.intp)
    counts = np.bincount(positions, minlength=len(categories) + 1).tolist()
    return dict(zip((*categories, MISSING_CATEGORY), counts, strict=True))


def _fit_evidence(
    name: str, edges: Edges, column: str, values: Floats, options: Woe, *, gaps: bool, codes: SpecialCodes
) -> NumericWoe:
    """Divide a numeric column (n,) into bins for weights of evidence, at declared edges or else at quantiles."""
    if edges:
        return declared_woe_bins(name, column, values, edges, gaps=gaps, options=options, codes=codes)
    return number_bins(column, values, gaps, options, codes)


def _fit_texts(
    name: str, kind: ColumnType, column: str, counts: dict[str, int], options: Preparation
) -> ColumnTransform:
    """Fit the transform of a text column on the number of training rows of each category."""
    rows = sum(counts.values())
    min_rows = max(MIN_FEATURE_ROWS, options.rare * rows)
    if options.woe is not None:
        if kind.groups:
            return declared_text_woe(name, column, counts, kind.groups, options.woe)
        return text_bins(column, counts, options.woe)
    if kind.groups:
        as_codes = options.texts == "codes"
        return declared_text_columns(name, column, counts, kind.groups, as_codes=as_codes, min_missing=min_rows)
    frequent = [text for text, count in counts.items() if count >= min_rows]
    frequent.sort(key=lambda text: (-counts[text], text))
    if not frequent:
        raise TableError(
            f"party {name}: no text of column {column!r} occurs in {min_rows:.0f} or more training rows",
            "drop the column, or encode it as numbers",
            code="SVFL-TABLE-TYPE",
            party=name,
            column=column,
        )
    if options.texts == "codes":
        return CodeTransform(column=column, categories=tuple(frequent))
    rare = rows - sum(counts[text] for text in frequent)
    other = rare >= MIN_FEATURE_ROWS
    return OneHotTransform(column=column, base=frequent[0], categories=tuple(sorted(frequent[1:])), other=other)
