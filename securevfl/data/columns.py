"""Columns as they come: numbers, some of them missing, and texts of a few values.

A table of both kinds is held as numbers alone. A text is its place in the sorted list of its column's `levels`, and
what is missing is NaN, so that rows are taken, joined and summed like those of any table. Nothing is filled in here:
that takes the training rows (`securevfl.data.preparation`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securevfl.base.arrays import Floats
from securevfl.data.text_values import DAY, are_percentages, is_ambiguous, is_number, meant, parse_dates, parse_numbers
from securevfl.data.validation import check_chosen, lacks
from securevfl.errors import TableError

Levels = Mapping[str, tuple[str, ...]]

_PARTED = re.compile(r"[+-]?\d[\d.,' ]*[.,' ][\d.,' ]*\d")  # 1,000 or 1.000,5
FEW = 20  # different numbers that a column of texts may hold, "1" and "2" beside "3+", and be no column of numbers


@dataclass(frozen=True)
class Columns:
    """X (n x d) with NaN for what is missing, the names of its columns, the levels of those that hold texts, which hold
    dates, as days since 1970-01-01, and which were written as percentages."""

    X: Floats
    names: list[str]
    levels: Levels = field(default_factory=dict)
    dates: frozenset[str] = frozenset()
    percents: frozenset[str] = frozenset()


class ColumnValues(NamedTuple):
    """One column as numbers (n,), its levels if it holds texts, and whether it holds dates or percentages."""

    values: Floats
    levels: tuple[str, ...] = ()
    dates: bool = False
    percents: bool = False


def columns_of(
    name: str,
    X: ArrayLike | Columns,
    columns: Sequence[str] | None = None,
    *,
    chosen: Sequence[str] | None = None,
    texts: Collection[str] = (),
) -> Columns:
    """Read the columns of party `name` from an array, or from a table that names them (pandas, polars, pyarrow).

    columns: other names; without any they are x0, x1 ... chosen: these, in this order, of a table that names its
    columns. What reads as numbers is numbers, but for `texts`; a sparse matrix is filled up. TableError if it is no
    table of rows and columns, if chosen columns are missing, or if a column is of neither kind.
    """
    if isinstance(X, Columns):
        _check_shape(name, X.X.shape)
        return replace(X, names=_renamed(name, X.names, columns, X.X.shape[1]))
    if has_names(X):
        keys = _by_name(name, getattr(X, "column_names", None) or X.columns, chosen)  # type: ignore[union-attr]
        _check_shape(name, (len(X), len(keys)))  # type: ignore[arg-type]
        found = [_column(name, own, np.asarray(X[key]), own in texts) for own, key in keys.items()]  # type: ignore[index]
        return joined(_renamed(name, list(keys), columns, len(keys)), found)
    table = np.asarray(X.toarray() if hasattr(X, "toarray") else X)
    _check_shape(name, table.shape)
    names = _renamed(name, [f"x{j}" for j in range(table.shape[1])], columns, table.shape[1])
    if table.dtype.kind in "biuf" and not texts:
        return Columns(table if table.dtype == np.float64 else table.astype(np.float64), names)
    return joined(names, [_column(name, own, table[:, j], own in texts) for j, own in enumerate(names)])


def has_names(X: Any) -> bool:
    """Whether a table names its columns: one of pandas, polars or pyarrow."""
    return isinstance(X, Columns) or hasattr(X, "columns") or hasattr(X, "column_names")


def _by_name(name: str, named: Iterable[Any], chosen: Sequence[str] | None) -> dict[str, Any]:
    """Map the names of columns, as texts, to what the table finds them by; of the chosen ones alone, in their order."""
    keys = [(str(column), column) for column in named]
    found = dict(keys)
    if len(found) < len(keys):
        twice = sorted({column for column, _ in keys if [own for own, _ in keys].count(column) > 1})
        raise TableError(f"party {name}: columns of different names were expected, twice: {', '.join(twice[:5])}")
    if chosen is None:
        return found
    check_chosen(found, chosen, f"party {name}: ")
    return {column: found[column] for column in chosen}


def text_column(name: str, column: str, values: Sequence[Any], *, forced: bool = False) -> ColumnValues:
    """`text_levels` of the texts of all rows (n,), None for a missing one."""
    levels = sorted({str(value) for value in values if value is not None})
    rank = {text: place for place, text in enumerate(levels)}
    places = np.array([-1 if value is None else rank[str(value)] for value in values], dtype=np.intp)
    return text_levels(name, column, levels, places, forced=forced)


def text_levels(
    name: str, column: str, levels: Sequence[str], places: NDArray[np.intp], *, forced: bool = False
) -> ColumnValues:
    """Read what a column of texts holds, from its sorted different texts and each row's place among them (n,), -1 where
    it is missing.

    Numbers or dates where all are written as such, else places of texts in the sorted levels. forced: they are texts
    whatever they look like. TableError for numbers with errors, or that can be read in two ways.
    """
    if not forced:
        days = parse_dates(levels)
        written = parse_numbers(levels) if days is None else days
        if written is not None:
            X = np.where(places < 0, np.nan, np.array(written)[places])
            return ColumnValues(X, dates=days is not None, percents=days is None and are_percentages(levels))
        _check_mixed(name, column, levels, places)
    return ColumnValues(np.where(places < 0, np.nan, places), tuple(levels))


def _check_mixed(name: str, column: str, levels: Sequence[str], places: NDArray[np.intp]) -> None:
    """Refuse a column of dates, amounts or numbers in a form that cannot be read: slips, and no texts."""
    if what := meant(levels):
        raise TableError(
            f"{name}numbers, texts or dates of ISO 8601 were expected, column {column} seems to hold {what}"
        )
    numbers = sum(map(is_number, levels))
    parted = sum(_PARTED.fullmatch(level) is not None and not is_number(level) for level in levels)
    if parted and numbers + parted == len(levels):
        row = int(np.isin(places, [place for place, level in enumerate(levels) if is_ambiguous(level)]).argmax())
        raise TableError(
            f"{name}numbers with a decimal point and nothing else were expected, column {column} has separators within "
            f"numbers that can be read in two ways, first in row {row + 1}; export it without"
        )
    if numbers > FEW and 2 * numbers >= len(levels):
        raise TableError(
            f"{name}numbers or texts were expected, column {column} mixes them: {len(levels) - numbers} of its "
            f"{len(levels)} different values are no numbers; correct these, leave them empty, or drop the column"
        )


def _check_shape(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 2 or 0 in shape:
        raise TableError(f"party {name}: a table of rows x columns was expected, an array of shape {shape} came")


def _renamed(name: str, names: list[str], columns: Sequence[str] | None, d: int) -> list[str]:
    named = names if columns is None else [str(column) for column in columns]
    if len(named) != d:
        raise TableError(f"party {name}: {d} column names were expected, {len(named)} came")
    return named


def _column(name: str, column: str, values: NDArray[Any], text: bool) -> ColumnValues:
    """One column as numbers, and its levels if it holds texts."""
    if values.dtype.kind in "biuf" and not text:
        return ColumnValues(values.astype(np.float64))
    if values.dtype.kind == "M" and not text:
        return ColumnValues(days_of(values), dates=True)
    held = [None if lacks(value) else value for value in values.tolist()]
    if text:
        return text_column(f"party {name}: ", column, held, forced=True)
    try:
        return ColumnValues(np.array([np.nan if value is None else float(value) for value in held]))
    except (TypeError, ValueError):
        if all(isinstance(value, date | None) for value in held):
            return ColumnValues(days_of(np.array(held, dtype="datetime64[us]")), dates=True)
        if not all(isinstance(value, str | int | float | None) for value in held):
            raise TableError(
                f"party {name}: numbers, texts or dates were expected, column {column} holds other objects; encode "
                "them as numbers"
            ) from None
    return text_column(f"party {name}: ", column, held)


def days_of(moments: NDArray[Any]) -> Floats:
    """Days since 1970-01-01 (n,), NaN where a date is missing."""
    days: Floats = moments.astype("datetime64[us]").astype(np.int64) / (DAY * 1e6)
    return np.where(np.isnat(moments), np.nan, days)


def joined(names: list[str], columns: Sequence[ColumnValues]) -> Columns:
    """Return one table of these columns."""
    held = dict(zip(names, columns, strict=True))
    levels = {name: read.levels for name, read in held.items() if read.levels}
    dates = frozenset(name for name, read in held.items() if read.dates)
    percents = frozenset(name for name, read in held.items() if read.percents)
    return Columns(np.column_stack([read.values for read in columns]), names, levels, dates, percents)
