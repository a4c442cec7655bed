"""A table as one float64 array, with the name and type of each column.

A numeric column holds its numbers and a date column days since 1970-01-01. A text column holds, for each row, the
position of its text among the column's sorted distinct texts (`categories`). A missing value is NaN. Missing values are
filled later, because that depends on which rows are training rows (`securevfl.data.preparation`). How a column gets its
type is documented in `securevfl.data.column_types`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from securevfl.base.arrays import Floats
from securevfl.data.column_types import ColumnType, Kind, Types, check_declared, decided_from_values, declared_type
from securevfl.data.frames import is_frame, named_columns, raw_column
from securevfl.data.raw_columns import (
    ColumnValues,
    Place,
    RawColumn,
    convert_column,
    raw_of_array,
    release_arrow_memory,
)
from securevfl.data.text_types import special_numbers
from securevfl.data.validation import check_chosen, name_list, unmasked
from securevfl.errors import DataNotice, TableError

Categories = Mapping[str, tuple[str, ...]]
"""The sorted texts of each text column, by the name of the column."""


@dataclass(frozen=True)
class Columns:
    """A table with typed columns.

    Attributes:
        X: the table (n, d), NaN for missing values.
        names: the names of the columns.
        categories: the sorted texts of each text column.
        dates: names of the date columns, which hold days since 1970-01-01.
        percents: names of the columns that were written as percentages.
        types: the types of the columns, once a reader has decided them.
    """

    X: Floats
    names: list[str]
    categories: Categories = field(default_factory=dict)
    dates: frozenset[str] = frozenset()
    percents: frozenset[str] = frozenset()
    types: Types = field(default_factory=dict)

    def type_of(self, name: str) -> ColumnType:
        """Return the type of a column."""
        if name in self.types:
            return self.types[name]
        kind: Kind = "category" if name in self.categories else "date" if name in self.dates else "number"
        return ColumnType(type="percent" if name in self.percents else kind, origin="file")

    def special_codes(self, name: str) -> tuple[tuple[str, float], ...]:
        """Return the special codes of a column, which are values such as "-999" that mean no amount.

        Args:
            name: the column.

        Returns:
            For each code its text, and the number that replaces it in the array of columns.
        """
        kind = self.types.get(name)
        return () if kind is None else tuple(special_numbers(kind).items())

    def without_codes(self, block: Floats, positions: Sequence[int]) -> Floats:
        """Return some columns of a block of rows as a copy (m, c), with NaN in place of special codes.

        Args:
            block: the rows (m, d).
            positions: the positions of the columns.

        Returns:
            The columns (m, c).
        """
        numbers = block[:, list(positions)]
        for column, position in enumerate(positions):
            if codes := [number for _, number in self.special_codes(self.names[position])]:
                numbers[np.isin(numbers[:, column], codes), column] = np.nan
        return numbers


def columns_of(
    name: str,
    X: ArrayLike | Columns | Any,
    columns: Sequence[str] | None = None,
    *,
    chosen: Sequence[str] | None = None,
    declared: Types | None = None,
    known: Types | None = None,
) -> Columns:
    """Read the columns of a table.

    Args:
        name: name of the party, which error messages state.
        X: an array (n, d), a sparse matrix, or a frame (`securevfl.data.frames`).
        columns: names of the columns; by default those of the frame, or x0, x1 ... for arrays.
        chosen: the columns of a frame to read, in this order; by default all.
        declared: the declared types of columns.
        known: the types of the columns in the training of a model, which replace all others.

    Returns:
        The columns. A notice reports types that were decided from values.

    Raises:
        TableError: if X is not a table of rows and columns, chosen columns are missing, or a column is neither numeric,
            nor text, nor of dates.
    """
    declared, known = declared or {}, known or {}
    if isinstance(X, Columns):
        _check_shape(name, X.X.shape)
        return replace(X, names=_renamed(name, X.names, columns, X.X.shape[1]))
    if is_frame(X):
        by_name = named_columns(name, X)
        if chosen is not None:
            check_chosen(by_name, chosen, f"party {name}: ")
            by_name = {column: by_name[column] for column in chosen}
        rows = len(next(iter(by_name.values()), ()))
        _check_shape(name, (rows, len(by_name)))
        names = _renamed(name, list(by_name), columns, len(by_name))
        check_declared(declared, names, name)
        values = (
            partial(_convert, name, column, partial(raw_column, name, key, by_name[key]), declared, known)
            for key, column in zip(by_name, names, strict=True)
        )
        joined = join_columns(names, values, rows, f"party {name}")
        release_arrow_memory(joined.X.size)
        return joined
    table = np.asarray(X.toarray() if hasattr(X, "toarray") else unmasked(X))
    if table.ndim == 0 or (table.dtype.kind == "O" and not hasattr(X, "shape") and table.ndim == 1):
        raise TableError(
            f"party {name}: a {type(X).__name__} of this kind is not a table",
            "pass an array (n, d), a frame, a dict of columns or an Arrow table; read a file first, for example with "
            "pandas.read_csv",
            code="SVFL-TABLE-SHAPE",
            party=name,
        )
    _check_shape(name, table.shape)
    names = _renamed(name, [f"x{j}" for j in range(table.shape[1])], columns, table.shape[1])
    check_declared(declared, names, name)
    if table.dtype.kind in "biuf" and not declared and all(kind.is_plain for kind in known.values()):
        return Columns(table if table.dtype == np.float64 else table.astype(np.float64), names)
    values = (
        partial(
            _convert,
            name,
            column,
            partial(raw_of_array, Place(name, column), table[:, j], typed=False),
            declared,
            known,
        )
        for j, column in enumerate(names)
    )
    return join_columns(names, values, len(table), f"party {name}")


def _convert(party: str, column: str, read: Callable[[], RawColumn], declared: Types, known: Types) -> ColumnValues:
    return convert_column(Place(party, column), read(), declared_type(declared, column), known.get(column))


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


def join_columns(names: list[str], columns: Iterable[Callable[[], ColumnValues]], rows: int, where: str) -> Columns:
    """Return one table of these columns.

    Args:
        names: the names of the columns.
        columns: return the values of each column, with their types. They are called one at a time, so that the table
            is in memory once.
        rows: the number of rows, n.
        where: the party or the file, for the notice.

    Returns:
        The table.
    """
    X, typed, problems = np.empty((rows, len(names))), list[ColumnValues](), list[TableError]()
    for j, convert in enumerate(columns):
        try:
            column = convert()
        except TableError as error:
            problems.append(error)
            continue
        X[:, j] = column.values
        typed.append(column._replace(values=X[:0, j]))
    if problems:
        raise combined(problems, where)
    return typed_columns(X, names, typed, where)


def empty_columns_error(names: Sequence[str]) -> TableError:
    """Return the error for columns of these names that have no values."""
    several = len(names) > 1
    return TableError(
        f"columns without values: {name_list(names)}" if several else f"column {names[0]!r} has no values",
        f"leave {'them' if several else 'it'} out of the file (or with prepare.drop in a job), or fill in values",
        code="SVFL-TABLE-EMPTY-COLUMN",
        column=names[0],
        columns=list(names),
    )


def combined(problems: Sequence[TableError], where: str) -> TableError:
    """Return one error for the problems of several columns, so that a user can correct all of them at once."""
    first, *others = problems
    if not others:
        return first
    texts = [str(problem) for problem in problems]
    text = "\n".join([texts[0], *(t if t.startswith(where) else f"{where}: {t}" for t in texts[1:])])
    return TableError(text, "", code=first.code, columns=[problem.fields.get("column") for problem in problems])


def typed_columns(X: Floats, names: list[str], columns: Sequence[ColumnValues], where: str) -> Columns:
    """Return a table (n, d) with the types of these columns, and warn of types that were decided from values."""
    by_name = dict(zip(names, columns, strict=True))
    types = {name: column.type for name, column in by_name.items()}
    _announce(by_name, where)
    return Columns(
        X,
        names,
        {name: column.categories for name, column in by_name.items() if column.type.kind == "category"},
        frozenset(name for name, kind in types.items() if kind.kind == "date"),
        frozenset(name for name, kind in types.items() if kind.kind == "percent"),
        types,
    )


def _announce(columns: Mapping[str, ColumnValues], where: str) -> None:
    """Warn of types other than numbers that were decided from values, and of values that are read in a special way."""
    facts = [f"{name!r} contains {remark}" for name, column in columns.items() for remark in column.remarks]
    types = {name: column.type for name, column in columns.items()}
    if any(kind.origin == "values" and kind.kind != "number" for kind in types.values()):
        facts.insert(0, f"read from their values: {decided_from_values(types)}")
    if facts:
        warnings.warn(f"{where}: {'; '.join(facts)}", DataNotice, stacklevel=5)
