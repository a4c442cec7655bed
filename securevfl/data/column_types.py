"""The schema of a party's table: the type of each column, which the party's part of the model stores.

The first of these sources that exists decides a column's type:
    declared   columns = { branch = "category", income = { type = "number", missing = ["-999", "?"], bins = [1000] } }
    file       the type of the column in a frame or a Parquet file: numbers, booleans, dates, categories
    values     the values of a CSV file, or of a column of texts (`securevfl.data.text_types`)

New rows are read with the types of the training. A value that does not fit the type is an error that names its row, or
is read as missing if the declaration has on_error = "missing". A declaration for "*" holds for all undeclared columns.
A declaration may also fix *bins*, the intervals or groups of texts into which the column is divided. It belongs to one
party: neither the job nor a message contains it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from numbers import Integral, Real
from typing import Any, Literal

from pydantic import field_validator, model_validator

from securevfl.base.config import Config
from securevfl.data.text_values import is_number
from securevfl.data.validation import MISSING_TEXTS, name_list
from securevfl.errors import ConfigError, TableError

Kind = Literal["number", "category", "date", "percent", "currency"]
Origin = Literal["declared", "file", "values"]
ALL_COLUMNS = "*"
"""The key of a declaration for all columns."""

KIND_NAMES: dict[Kind, str] = {
    "number": "numbers",
    "category": "categories",
    "date": "dates",
    "percent": "percentages",
    "currency": "amounts of money",
}
"""The values of each kind, for messages."""
MAX_DECLARED_BINS = 1000
"""Maximum number of edges, or of merged categories, that a column may declare."""
Edges = tuple[float, ...]
"""Edges of the bins of a numeric column, in increasing order."""
Groups = tuple[tuple[str, ...], ...]
"""Texts of a category column that share a bin, for each bin."""


class ColumnType(Config):
    """The type of a column: its kind (number, category, date ...), texts for special and missing values, and unit."""

    type: Kind | None = None
    """What the values are; None leaves it to the file or the values. "text" is another name for "category"."""
    unit: str = ""
    """The sign of a currency, such as "EUR" or "$", before or after each amount."""
    missing: tuple[str, ...] = ()
    """Marks of missing values in addition to empty fields, NA, NaN and null: ["-999", "?"]."""
    special: tuple[str, ...] = ()
    """Numbers or dates that are codes with a meaning of their own, such as "-1" for no account. They are no amounts:
    each frequent code gets a 0/1 column, or a bin of its own, and the column has its median there."""
    bins: Edges | Groups = ()
    """The bins of the column. For numbers: their lower edges in increasing order, without the first bin's, as in
    [1000, 2000, 5000]. For categories: lists of the texts that share a bin, as in [["A", "B"], ["C"]]; all other texts
    share one more. Missing values and each special code have separate bins if they are frequent."""
    on_error: Literal["refuse", "missing"] = "refuse"
    """What happens to values that do not fit: an error that names the first row, or missing values and a notice."""
    decimal: Literal["", ".", ","] = ""
    """The decimal mark of numbers with thousands separators; by default numbers have a decimal point and none."""
    format: str | None = None
    """The format of dates that are not ISO 8601, as in "%d.%m.%Y"."""
    origin: Origin = "declared"
    """Where the type is from."""

    @field_validator("missing", "special", mode="before")
    @classmethod
    def _write_numbers(cls, marks: Any) -> Any:
        if not isinstance(marks, list | tuple):
            return marks
        return [_text_of_mark(mark) if _is_number(mark) else mark for mark in marks]

    @field_validator("bins", mode="before")
    @classmethod
    def _check_bins(cls, bins: Any) -> Any:
        if isinstance(bins, list | tuple) and all(map(_is_number, bins)):
            bins = tuple(float(edge) for edge in bins)
        if not isinstance(bins, list | tuple) or not (all(map(_is_number, bins)) or all(map(_are_texts, bins))):
            raise ValueError('write edges, as in [1000, 2000], or lists of texts, as in [["A", "B"], ["C"]]')
        if len(bins) > MAX_DECLARED_BINS:
            raise ValueError(f"a column may declare at most {MAX_DECLARED_BINS}")
        if not all(map(_is_number, bins)):
            texts = list(chain.from_iterable(bins))
            if missing := [text for text in texts if text.strip() in MISSING_TEXTS]:
                raise ValueError(
                    f'{missing[0]!r} is read as a missing value; write "(missing)", which is the category of all '
                    "missing texts, or write another text in the table"
                )
            if len(set(texts)) < len(texts):
                raise ValueError("no text may be in two bins")
            if len({group_name(group) for group in bins}) < len(bins):
                raise ValueError("two bins would have the same name; merge other texts")
            return bins
        if not all(map(math.isfinite, bins)) or any(low >= high for low, high in pairwise(bins)):
            raise ValueError("edges are finite numbers in increasing order")
        return bins

    @model_validator(mode="before")
    @classmethod
    def _rename_text(cls, keys: Any) -> Any:
        if isinstance(keys, Mapping) and keys.get("type") == "text":
            return {**keys, "type": "category"}
        return keys

    @model_validator(mode="after")
    def _fit_bins_to_type(self) -> ColumnType:
        if self.edges and self.type in ("category", "date"):
            raise ValueError(f"bins: edges are numbers, and the column holds {KIND_NAMES[self.type]}")
        if self.groups and self.type not in (None, "category"):
            raise ValueError(f"bins: the column holds {KIND_NAMES[self.type]}; write edges instead of texts")
        return self

    @model_validator(mode="after")
    def _check_special(self) -> ColumnType:
        if self.special and self.type == "category":
            raise ValueError("special: each text of a category column is a category already; leave special out")
        if both := sorted(set(self.special) & set(self.missing)):
            raise ValueError(f"special: {', '.join(both)} cannot be both missing and special")
        return self

    @property
    def edges(self) -> Edges:
        """The declared edges of a numeric column; empty if there are none."""
        return tuple(edge for edge in self.bins if not isinstance(edge, tuple))

    @property
    def groups(self) -> Groups:
        """The declared bins of a category column; empty if there are none."""
        return tuple(group for group in self.bins if isinstance(group, tuple))

    @property
    def kind(self) -> Kind:
        """The kind of the column (number, category, date ...), once it has been decided."""
        return self.type or "number"

    @property
    def missing_numbers(self) -> tuple[float, ...]:
        """The marks of missing values that are numbers."""
        return tuple(float(mark) for mark in self.missing if is_number(mark))

    @property
    def declared(self) -> bool:
        """Whether the user has declared the kind, so that it is not decided from the file or the values."""
        return self.type is not None and self.origin == "declared"

    @property
    def is_divided(self) -> bool:
        """Whether the declaration contains special codes or bins, so that the column is divided into them."""
        return bool(self.special or self.bins)

    @property
    def is_plain(self) -> bool:
        """Whether the column holds plain numbers without texts that mean "missing", so no value is converted."""
        return self.kind == "number" and not (self.missing or self.special) and self.on_error == "refuse"

    def __str__(self) -> str:
        """Return the kind, its unit and how the type was decided, as the command `describe` prints them."""
        unit = f" ({self.unit})" if self.unit else ""
        return f"{self.kind}{unit}, {self.origin}"


def group_name(texts: Sequence[str]) -> str:
    """Return the name of a bin of texts, such as "{A, B}"; the text itself if there is only one."""
    return texts[0] if len(texts) == 1 else f"{{{', '.join(texts)}}}"


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)  # numbers of numpy are Real, too


def _text_of_mark(mark: Real) -> str:
    return str(int(mark)) if isinstance(mark, Integral) else repr(float(mark)).removesuffix(".0")


def _are_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(text, str) for text in value)


Types = Mapping[str, ColumnType]
"""The types of columns by name; the key "*" of a declaration stands for all others."""


def read_types(declarations: Any) -> dict[str, ColumnType]:
    """Read declarations of column types.

    Args:
        declarations: for each column a kind, or a mapping with the fields of `ColumnType`; or None.

    Returns:
        The types by name.

    Raises:
        ConfigError: if a declaration cannot be used.
    """
    if declarations is None:
        return {}
    if not isinstance(declarations, Mapping):
        raise ConfigError(
            "columns is not a table that assigns types to names of columns",
            'write for example columns = { branch = "category" }',
            code="SVFL-JOB-OPTION",
            option="columns",
        )
    types = dict[str, ColumnType]()
    for name, value in declarations.items():
        if isinstance(value, ColumnType):
            types[str(name)] = value
            continue
        keys = {"type": value} if isinstance(value, str) else value
        try:
            types[str(name)] = ColumnType(**keys)
        except (TypeError, ConfigError) as error:
            problem = error.problem if isinstance(error, ConfigError) else "write a type, or a table of options"
            raise ConfigError(f"columns.{name}: {problem}", code="SVFL-JOB-OPTION", option=f"columns.{name}") from None
    if ALL_COLUMNS in types and types[ALL_COLUMNS].bins:
        raise ConfigError(
            "columns.*: bins belong to one column",
            "declare them for each column by its name",
            code="SVFL-JOB-OPTION",
            option="columns.*",
        )
    return types


def decided_from_values(types: Types) -> str:
    """Return how many columns have a type that was decided from their values, by kind and with names.

    Args:
        types: the types of a table's columns.

    Returns:
        A text such as "5 as numbers (age, income, rate and 2 more), 1 as categories (town)"; empty if there are
        none.
    """
    kinds: dict[Kind, list[str]] = {}
    for name, kind in types.items():
        if kind.origin == "values":
            kinds.setdefault(kind.kind, []).append(name)
    counts = [
        f"{len(kinds[kind])} as {KIND_NAMES[kind]} ({name_list(kinds[kind], 3)})"
        for kind in KIND_NAMES
        if kind in kinds
    ]
    return ", ".join(counts)


def declared_type(types: Types, name: str) -> ColumnType:
    """Return the declaration of a column, or else that for "*"; a type whose kind is undecided if there is neither."""
    return types.get(name) or types.get(ALL_COLUMNS) or ColumnType()


def check_declared(types: Types, names: Any, party: str | None = None) -> None:
    """Raise TableError if a declaration names a column that the table does not have.

    Args:
        types: the declarations.
        names: the names of the table's columns.
        party: the party, for messages.

    Raises:
        TableError: if a declared column does not exist.
    """
    if unknown := [name for name in types if name != ALL_COLUMNS and name not in names]:
        prefix = "" if party is None else f"party {party}: "
        raise TableError(
            f"{prefix}columns declares the types of columns that the table lacks: {name_list(unknown)}",
            "correct their names",
            code="SVFL-TABLE-COLUMNS",
            columns=unknown,
        )
