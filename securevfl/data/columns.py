"""Columns as they come: numbers, some of them missing, and texts of a few values.

A table of both kinds is held as numbers alone. A text is its place in the sorted list of its column's `levels`, and
what is missing is NaN, so that rows are taken, joined and summed like those of any table. Nothing is filled in here:
that takes the training rows (`securevfl.data.preparation`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securevfl.crypto.scheme import Floats
from securevfl.errors import TableError

Levels = Mapping[str, tuple[str, ...]]

FEW = 20  # different numbers that a column of texts may hold, "1" and "2" beside "3+", and be no column of numbers


@dataclass(frozen=True)
class Columns:
    """X (n x d) with NaN for what is missing, the names of its columns, and the levels of those that hold texts."""

    X: Floats
    names: list[str]
    levels: Levels = field(default_factory=dict)


def columns_of(
    name: str, X: ArrayLike | Columns, columns: Sequence[str] | None = None, *, texts: Collection[str] = ()
) -> Columns:
    """The columns of party `name` from an array, or from a table that names them (pandas, polars, pyarrow).

    Without names they are x0, x1 ... What reads as numbers is numbers, but for `texts`. TableError if it is no table of
    rows and columns, or a column is of neither kind.
    """
    if isinstance(X, Columns):
        return X
    named = getattr(X, "column_names", None) or getattr(X, "columns", None)
    if named is not None and not isinstance(X, np.ndarray):
        names = [str(column) for column in named]
        twice = sorted({column for column in names if names.count(column) > 1})
        if twice:
            raise TableError(f"party {name}: columns of different names were expected, twice: {', '.join(twice[:5])}")
        _check_shape(name, (len(X), len(names)))  # type: ignore[arg-type]
        found = [_column(name, own, np.asarray(X[key]), own in texts) for own, key in zip(names, named, strict=True)]  # type: ignore[index]
        return _joined(_renamed(name, names, columns), found)
    table = np.asarray(X)
    _check_shape(name, table.shape)
    names = _renamed(name, [f"x{j}" for j in range(table.shape[1])], columns)
    if table.dtype.kind in "biuf" and not texts:
        return Columns(table if table.dtype == np.float64 else table.astype(np.float64), names)
    return _joined(names, [_column(name, own, table[:, j], own in texts) for j, own in enumerate(names)])


def text_column(name: str, column: str, values: Sequence[Any]) -> tuple[Floats, tuple[str, ...]]:
    """Places of texts in the sorted levels (n,), NaN for None, and the levels. TableError for numbers with errors."""
    lacking = np.array([value is None for value in values], dtype=bool)
    X = np.full(len(lacking), np.nan)
    levels, places = np.unique(np.array([str(value) for value in values if value is not None]), return_inverse=True)
    X[~lacking] = places
    _check_mixed(name, column, [str(level) for level in levels])
    return X, tuple(str(level) for level in levels)


def _check_mixed(name: str, column: str, levels: Sequence[str]) -> None:
    """Refuses a column of numbers in which some values are none, which is a slip and no column of texts."""
    numbers = sum(map(_is_number, levels))
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


def _renamed(name: str, names: list[str], columns: Sequence[str] | None) -> list[str]:
    if columns is None:
        return names
    if len(columns) != len(names):
        raise TableError(f"party {name}: {len(names)} column names were expected, {len(columns)} came")
    return [str(column) for column in columns]


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
