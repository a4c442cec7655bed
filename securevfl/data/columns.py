"""Columns of a table as numbers: numeric columns, dates, and texts with a set of categories.

A text is stored as its position in the sorted `categories` of its column, and a missing value as NaN, so that one
float64 array holds the whole table. Missing values are not filled here, because that takes the training rows
(`securevfl.data.preparation`).
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
from securevfl.data.text_values import (
    DAY,
    are_percentages,
    is_ambiguous,
    is_number,
    parse_dates,
    parse_numbers,
    unreadable_format,
)
from securevfl.data.validation import check_chosen, is_missing, name_list, unmasked
from securevfl.errors import TableError

Categories = Mapping[str, tuple[str, ...]]
"""The sorted texts of each text column, by the name of the column."""

_SEPARATED = re.compile(r"[+-]?\d[\d.,' ]*[.,' ][\d.,' ]*\d")  # 1,000 or 1.000,5
MAX_NUMERIC_CATEGORIES = 20
"""The number of distinct numbers that a text column may contain, such as "1" and "2" in addition to "3+"."""


@dataclass(frozen=True)
class Columns:
    """A table with typed columns.

    Attributes:
        X: the table (n, d), NaN for missing values.
        names: the names of the columns.
        categories: the sorted texts of each text column.
        dates: names of the date columns, which hold days since 1970-01-01.
        percents: names of the columns that were written as percentages.
    """

    X: Floats
    names: list[str]
    categories: Categories = field(default_factory=dict)
    dates: frozenset[str] = frozenset()
    percents: frozenset[str] = frozenset()


class ColumnValues(NamedTuple):
    """One column as numbers (n,), with the categories of a text column, or whether it holds dates or percentages."""

    values: Floats
    categories: tuple[str, ...] = ()
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
    """Read the columns of a table.

    Args:
        name: the party, for messages.
        X: an array (n, d), a sparse matrix, or a frame of pandas, polars or pyarrow.
        columns: names of the columns; by default those of the frame, or x0, x1 ... for arrays.
        chosen: the columns of a frame to read, in this order; by default all.
        texts: columns that are text even if their values look like numbers.

    Returns:
        The columns.

    Raises:
        TableError: if X is not a table of rows and columns, chosen columns are missing, or a column is neither numeric,
            nor text, nor of dates.
    """
    if isinstance(X, Columns):
        _check_shape(name, X.X.shape)
        return replace(X, names=_renamed(name, X.names, columns, X.X.shape[1]))
    if has_names(X):
        keys = _by_name(name, getattr(X, "column_names", None) or X.columns, chosen)  # type: ignore[union-attr]
        _check_shape(name, (len(X), len(keys)))  # type: ignore[arg-type]
        values = [_column(name, column, np.asarray(X[key]), column in texts) for column, key in keys.items()]  # type: ignore[index]
        return join_columns(_renamed(name, list(keys), columns, len(keys)), values)
    table = np.asarray(X.toarray() if hasattr(X, "toarray") else unmasked(X))
    _check_shape(name, table.shape)
    names = _renamed(name, [f"x{j}" for j in range(table.shape[1])], columns, table.shape[1])
    if table.dtype.kind in "biuf" and not texts:
        return Columns(table if table.dtype == np.float64 else table.astype(np.float64), names)
    return join_columns(names, [_column(name, column, table[:, j], column in texts) for j, column in enumerate(names)])


def has_names(X: Any) -> bool:
    """Return whether a table names its columns, as those of pandas, polars and pyarrow do."""
    return isinstance(X, Columns) or hasattr(X, "columns") or hasattr(X, "column_names")


def _by_name(name: str, keys: Iterable[Any], chosen: Sequence[str] | None) -> dict[str, Any]:
    """Map the names of columns, as texts, to the keys of the frame; only the chosen ones, in their order, if given."""
    pairs = [(str(key), key) for key in keys]
    by_name = dict(pairs)
    if len(by_name) < len(pairs):
        names = [column for column, _ in pairs]
        repeated = sorted({column for column in names if names.count(column) > 1})
        raise TableError(
            f"party {name}: several columns have the name {name_list(repeated)}",
            "rename columns so that all names differ",
            code="SVFL-TABLE-HEADER",
            party=name,
            columns=repeated,
        )
    if chosen is None:
        return by_name
    check_chosen(by_name, chosen, f"party {name}: ")
    return {column: by_name[column] for column in chosen}


def text_column(party: str | None, column: str, values: Sequence[Any], *, forced: bool = False) -> ColumnValues:
    """Read a column from the texts (n,) of all rows, None for missing ones (see `read_texts`)."""
    texts = sorted({str(value) for value in values if value is not None})
    rank = {text: position for position, text in enumerate(texts)}
    positions = np.array([-1 if value is None else rank[str(value)] for value in values], dtype=np.intp)
    return read_texts(party, column, texts, positions, forced=forced)


def read_texts(
    party: str | None, column: str, texts: Sequence[str], positions: NDArray[np.intp], *, forced: bool = False
) -> ColumnValues:
    """Read a column of texts as dates, numbers or categories.

    Args:
        party: the party, for messages, if it is known.
        column: the name of the column.
        texts: the sorted distinct texts.
        positions: position (n,) of each row's text among them, -1 if it is missing.
        forced: read categories, even if the texts look like numbers or dates.

    Returns:
        Numbers or dates if all texts are written as such; otherwise categories.

    Raises:
        TableError: if the texts look like numbers or dates with errors, or can be read in two ways.
    """
    if not forced:
        days = parse_dates(texts)
        numbers = parse_numbers(texts) if days is None else days
        if numbers is not None:
            values = np.where(positions < 0, np.nan, np.array(numbers)[positions])
            return ColumnValues(values, dates=days is not None, percents=days is None and are_percentages(texts))
        _check_mixed(party, column, texts, positions)
    return ColumnValues(np.where(positions < 0, np.nan, positions), tuple(texts))


def _check_mixed(party: str | None, column: str, texts: Sequence[str], positions: NDArray[np.intp]) -> None:
    """Refuse a column that seems to hold dates, amounts or numbers in a form that cannot be read."""
    prefix = "" if party is None else f"party {party}: "
    fields = {"column": column} if party is None else {"party": party, "column": column}
    if recognised := unreadable_format(texts):
        what, remedy = recognised
        raise TableError(f"{prefix}column {column!r} seems to contain {what}", remedy, code="SVFL-TABLE-TYPE", **fields)
    numbers = sum(map(is_number, texts))
    separated = sum(_SEPARATED.fullmatch(text) is not None and not is_number(text) for text in texts)
    if separated and numbers + separated == len(texts):
        ambiguous = [position for position, text in enumerate(texts) if is_ambiguous(text)]
        row = int(np.isin(positions, ambiguous).argmax()) + 1
        raise TableError(
            f"{prefix}column {column!r} contains numbers whose separators can be read in two ways, first in row {row}",
            "export numbers with a decimal point and without thousands separators",
            code="SVFL-TABLE-TYPE",
            row=row,
            **fields,
        )
    if numbers > MAX_NUMERIC_CATEGORIES and 2 * numbers >= len(texts):
        raise TableError(
            f"{prefix}column {column!r} mixes numbers and text: {len(texts) - numbers} of its {len(texts)} distinct "
            "values "
            "are not numbers",
            "correct these values, leave them empty, or drop the column",
            code="SVFL-TABLE-TYPE",
            **fields,
        )


def _check_shape(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 2 or 0 in shape:
        raise TableError(
            f"party {name}: an array of shape {shape} is not a table",
            "pass a table with rows and columns",
            code="SVFL-TABLE-SHAPE",
            party=name,
        )


def _renamed(name: str, names: list[str], columns: Sequence[str] | None, d: int) -> list[str]:
    chosen = names if columns is None else [str(column) for column in columns]
    if len(chosen) != d:
        raise TableError(
            f"party {name} has {d} columns and {len(chosen)} column names",
            "pass one name for each column",
            code="SVFL-TABLE-SHAPE",
            party=name,
        )
    return chosen


def _column(name: str, column: str, values: NDArray[Any], text: bool) -> ColumnValues:
    """Read one column of an array or a frame; `text` reads categories."""
    if values.dtype.kind in "biuf" and not text:
        return ColumnValues(values.astype(np.float64))
    if values.dtype.kind == "M" and not text:
        return ColumnValues(days_of(values), dates=True)
    objects = [None if is_missing(value) else value for value in values.tolist()]
    if text:
        return text_column(name, column, objects, forced=True)
    try:
        return ColumnValues(np.array([np.nan if value is None else float(value) for value in objects]))
    except (TypeError, ValueError):
        if all(isinstance(value, date | None) for value in objects):
            return ColumnValues(days_of(np.array(objects, dtype="datetime64[us]")), dates=True)
        if not all(isinstance(value, str | int | float | None) for value in objects):
            raise TableError(
                f"party {name}: column {column!r} contains objects other than numbers, texts and dates",
                "encode them as numbers",
                code="SVFL-TABLE-TYPE",
                party=name,
                column=column,
            ) from None
    return text_column(name, column, objects)


def days_of(moments: NDArray[Any]) -> Floats:
    """Return datetime64 values (n,) as days since 1970-01-01, NaN for NaT."""
    days: Floats = moments.astype("datetime64[us]").astype(np.int64) / (DAY * 1e6)
    return np.where(np.isnat(moments), np.nan, days)


def join_columns(names: list[str], columns: Sequence[ColumnValues]) -> Columns:
    """Return one table of these columns."""
    by_name = dict(zip(names, columns, strict=True))
    categories = {name: column.categories for name, column in by_name.items() if column.categories}
    dates = frozenset(name for name, column in by_name.items() if column.dates)
    percents = frozenset(name for name, column in by_name.items() if column.percents)
    return Columns(np.column_stack([column.values for column in columns]), names, categories, dates, percents)
