"""Columns as they come: numbers, some of them missing, and texts of a few values.

A table of both kinds is held as numbers alone. A text is its place in the sorted list of its column's `levels`, and
what is missing is NaN, so that rows are taken, joined and summed like those of any table. Nothing is filled in here:
that takes the training rows (`securevfl.data.preparation`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securevfl.crypto.scheme import Floats
from securevfl.errors import TableError

Levels = Mapping[str, tuple[str, ...]]

_PARTED = re.compile(r"[+-]?\d[\d.,' ]*[.,' ][\d.,' ]*\d")  # 1,000 or 1.000,5
FEW = 20  # different numbers that a column of texts may hold, "1" and "2" beside "3+", and be no column of numbers


@dataclass(frozen=True)
class Columns:
    """X (n x d) with NaN for what is missing, the names of its columns, and the levels of those that hold texts."""

    X: Floats
    names: list[str]
    levels: Levels = field(default_factory=dict)


def columns_of(
    name: str,
    X: ArrayLike | Columns,
    columns: Sequence[str] | None = None,
    *,
    chosen: Sequence[str] | None = None,
    texts: Collection[str] = (),
) -> Columns:
    """The columns of party `name` from an array, or from a table that names them (pandas, polars, pyarrow).

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
        return _joined(_renamed(name, list(keys), columns, len(keys)), found)
    table = np.asarray(X.toarray() if hasattr(X, "toarray") else X)
    _check_shape(name, table.shape)
    names = _renamed(name, [f"x{j}" for j in range(table.shape[1])], columns, table.shape[1])
    if table.dtype.kind in "biuf" and not texts:
        return Columns(table if table.dtype == np.float64 else table.astype(np.float64), names)
    return _joined(names, [_column(name, own, table[:, j], own in texts) for j, own in enumerate(names)])


def has_names(X: Any) -> bool:
    """Whether a table names its columns: one of pandas, polars or pyarrow."""
    return isinstance(X, Columns) or hasattr(X, "columns") or hasattr(X, "column_names")


def _by_name(name: str, named: Iterable[Any], chosen: Sequence[str] | None) -> dict[str, Any]:
    """What a table finds its columns by, by their names as texts; of the chosen ones alone, in their order."""
    keys = [(str(column), column) for column in named]
    found = dict(keys)
    if len(found) < len(keys):
        twice = sorted({column for column, _ in keys if [own for own, _ in keys].count(column) > 1})
        raise TableError(f"party {name}: columns of different names were expected, twice: {', '.join(twice[:5])}")
    if chosen is None:
        return found
    lacking = [column for column in chosen if column not in found]
    if lacking:
        raise TableError(f"party {name}: columns of the training were expected, missing: {lacking}; add them")
    return {column: found[column] for column in chosen}


def text_column(name: str, column: str, values: Sequence[Any]) -> tuple[Floats, tuple[str, ...]]:
    """Places of texts in the sorted levels (n,), NaN for None, and the levels. TableError for numbers with errors."""
    lacking = np.array([value is None for value in values], dtype=bool)
    X = np.full(len(lacking), np.nan)
    levels, places = np.unique(np.array([str(value) for value in values if value is not None]), return_inverse=True)
    X[~lacking] = places
    _check_mixed(name, column, [str(level) for level in levels])
    return X, tuple(str(level) for level in levels)


def _check_mixed(name: str, column: str, levels: Sequence[str]) -> None:
    """Refuses a column of numbers in which some values are none, or parted as people do: slips, and no texts."""
    numbers = sum(map(_is_number, levels))
    parted = sum(_PARTED.fullmatch(level) is not None for level in levels)
    if parted and numbers + parted == len(levels):
        raise TableError(
            f"{name}numbers with a decimal point and nothing else were expected, column {column} has separators within "
            "numbers; export it without"
        )
    if numbers > FEW and 2 * numbers >= len(levels):
        raise TableError(
            f"{name}numbers or texts were expected, column {column} mixes them: {len(levels) - numbers} of its "
            f"{len(levels)} different values are no numbers; correct these, leave them empty, or drop the column"
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_shape(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 2 or 0 in shape:
        raise TableError(f"party {name}: a table of rows x columns was expected, an array of shape {shape} came")


def _renamed(name: str, names: list[str], columns: Sequence[str] | None, d: int) -> list[str]:
    named = names if columns is None else [str(column) for column in columns]
    if len(named) != d:
        raise TableError(f"party {name}: {d} column names were expected, {len(named)} came")
    return named


def _column(name: str, column: str, values: NDArray[Any], text: bool) -> tuple[Floats, tuple[str, ...]]:
    """One column as numbers, and its levels if it holds texts."""
    if values.dtype.kind in "biuf" and not text:
        return values.astype(np.float64), ()
    held = [None if _lacks(value) else value for value in values.tolist()]
    if text:
        return text_column(f"party {name}: ", column, held)
    try:
        return np.array([np.nan if value is None else float(value) for value in held]), ()
    except (TypeError, ValueError):
        if not all(isinstance(value, str | int | float | None) for value in held):
            raise TableError(
                f"party {name}: numbers or texts were expected, column {column} holds other objects, such as dates; "
                "encode them as numbers"
            ) from None
    return text_column(f"party {name}: ", column, held)


def _lacks(value: Any) -> bool:
    """Whether it stands for a missing value: None, NaN, or what pandas has for these."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float) and value != value


def _joined(names: list[str], found: Sequence[tuple[Floats, tuple[str, ...]]]) -> Columns:
    levels = {name: own for name, (_, own) in zip(names, found, strict=True) if own}
    return Columns(np.column_stack([values for values, _ in found]), names, levels)
