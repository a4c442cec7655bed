"""One column as a reader delivers it, and its conversion to the numbers of a type (`securevfl.data.column_types`).

All readers (of arrays, frames, CSV and Parquet files and HTTP requests) deliver one of three forms: `NumberColumn`,
`DateColumn` or `TextColumn`. Types are therefore decided and converted in the same way for all of them. A *misfit* is a
value that does not fit the type of its column.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.data.arrow_values import float_values, integer_values
from securevfl.data.column_types import KIND_NAMES, ColumnType
from securevfl.data.text_types import (
    SUSPECTED_MARKS,
    TextOrigin,
    convert_texts,
    decide_type,
    infer_decimal,
    mark_form,
    number_texts,
    special_numbers,
)
from securevfl.data.text_values import DAY, is_number, parse_dates
from securevfl.data.validation import MISSING_TEXTS, is_missing
from securevfl.errors import ConfigError, TableError

_MIN_RELEASED_VALUES = 1 << 20  # tables with fewer numbers (8 MB) are too small for releasing memory to be worthwhile


@dataclass(frozen=True)
class NumberColumn:
    """A column that its source delivers as numbers: float64 (n,), NaN for missing values."""

    values: Floats


@dataclass(frozen=True)
class DateColumn:
    """A column of dates: the days since 1970-01-01 (n,), NaN for missing values."""

    values: Floats


@dataclass(frozen=True)
class TextColumn:
    """A column of texts.

    Attributes:
        texts: the distinct texts.
        positions: position (n,) of each row's text among the distinct texts, -1 for missing values.
        origin: "csv" for texts of a file without types, "text" or "category" if the source declares this type.
        delimiter: the delimiter of the CSV file.
    """

    texts: Sequence[str]
    positions: NDArray[np.intp]
    origin: TextOrigin
    delimiter: str = ""

    def without_missing(self) -> TextColumn:
        """Return the column with blank texts and texts such as "NA" as missing values."""
        missing = [text.strip() in MISSING_TEXTS for text in self.texts]
        if not any(missing):
            return self
        kept = [text for text, is_gap in zip(self.texts, missing, strict=True) if not is_gap]
        place = np.append(np.where(missing, -1, np.cumsum(~np.array(missing)) - 1), -1)
        return TextColumn(kept, place[self.positions], self.origin, self.delimiter)


RawColumn = NumberColumn | DateColumn | TextColumn


class ColumnValues(NamedTuple):
    """One column converted to numbers (n,).

    Attributes:
        values: the numbers. A category is its position in `categories`, and a date days since 1970-01-01.
        type: the type of the column.
        categories: the sorted texts of a category column.
        remarks: facts about the values that a notice reports to the user.
    """

    values: Floats
    type: ColumnType
    categories: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


class Place(NamedTuple):
    """The party (if known) and the name of a column, for error messages."""

    party: str | None
    column: str

    def error(self, problem: str, remedy: str, **fields: Any) -> TableError:
        """Return a TableError whose message begins with the party and the column."""
        prefix = f"party {self.party}: " if self.party else ""
        named = fields | {"column": self.column} | ({"party": self.party} if self.party else {})
        return TableError(f"{prefix}column {self.column!r} {problem}", remedy, code="SVFL-TABLE-TYPE", **named)


def convert_column(place: Place, raw: RawColumn, declared: ColumnType, known: ColumnType | None = None) -> ColumnValues:
    """Convert a column to numbers of its type.

    Args:
        place: the column, as error messages name it.
        raw: the column as its reader delivers it.
        declared: the user's declaration of the column; its `type` is None if the user declared no type.
        known: the type that the column had in the training of a model.

    Returns:
        The column as numbers, with its type.

    Raises:
        TableError: if the type cannot be decided, or a value does not fit it and the declaration refuses that.
    """
    remark = ""
    if isinstance(raw, TextColumn):
        raw = raw.without_missing()
    target = known
    if target is None and declared.type is not None:
        target = declared
        if isinstance(raw, TextColumn) and target.kind in ("number", "percent", "currency") and not target.decimal:
            target = target.model_copy(update={"decimal": infer_decimal(raw.texts, target, raw.delimiter)})
    if target is None:
        marks = {mark_form(mark) for mark in (*declared.missing, *declared.special)}
        target, remark = _decide(place, raw, marks)
        if declared.special and target.kind == "category":
            raise place.error(
                "has special codes, but it is read as categories",
                'leave special out, since each text is a category already, or declare type = "number"',
            )
        if (declared.edges and target.kind in ("category", "date")) or (declared.groups and target.kind != "category"):
            written = "lists of texts" if declared.groups else "edges"
            raise place.error(
                f"is read as {KIND_NAMES[target.kind]}, but its declared bins are {written}",
                "declare the type of the column, or correct its bins",
            )
        update = {key: getattr(declared, key) for key in ("missing", "special", "bins", "on_error")}
        target = target.model_copy(update=update)
        if declared.decimal or declared.format:
            target = target.model_copy(update={"decimal": declared.decimal, "format": declared.format})
    _check_special(place, target)
    converted = _without_infinities(_convert(place, raw, target, of_model=known is not None))
    return converted._replace(remarks=(remark, *converted.remarks)) if remark else converted


def _check_special(place: Place, kind: ColumnType) -> None:
    """Raise an error if a special code does not fit the type of the column."""
    try:
        special_numbers(kind)
    except ConfigError as error:
        raise place.error(f"cannot be read: {error.problem}", error.remedy or "") from None


def _decide(place: Place, raw: RawColumn, marks: set[str]) -> tuple[ColumnType, str]:
    """Decide the type of an undeclared column. Return the type, and a remark about it for the user."""
    if isinstance(raw, NumberColumn):
        return ColumnType(type="number", origin="file"), ""
    if isinstance(raw, DateColumn):
        return ColumnType(type="date", origin="file"), ""
    texts = [text for text in raw.texts if mark_form(text) not in marks]
    decision = decide_type(texts, raw.origin, raw.delimiter)
    if decision.type is None:
        bad = {texts[index] for index in decision.bad}
        row = _first_row(raw, [index for index, text in enumerate(raw.texts) if text in bad]) if bad else None
        where = "" if row is None else f", first in row {row}"
        fields = {} if row is None else {"row": row}
        raise place.error(f"{decision.problem}{where}", decision.remedy, **fields)
    return decision.type, decision.remark


def _convert(place: Place, raw: RawColumn, kind: ColumnType, *, of_model: bool) -> ColumnValues:
    if isinstance(raw, TextColumn):
        conversion = convert_texts(raw.texts, kind)
        numbers = np.append(np.array(conversion.numbers, np.float64), np.nan)
        remarks = _handle_misfits(place, raw, kind, conversion.misfits, of_model=of_model)
        return ColumnValues(numbers[raw.positions], kind, conversion.categories, remarks)
    if kind.kind == "category":
        texts, positions = number_texts(raw.values)
        if isinstance(raw, DateColumn):
            texts = [str(np.datetime64(0, "D") + np.timedelta64(int(float(text) // 1), "D")) for text in texts]
        return _convert(place, TextColumn(texts, positions, "category").without_missing(), kind, of_model=of_model)
    fits = kind.kind == ("date" if isinstance(raw, DateColumn) else "number")
    fits = fits or (isinstance(raw, NumberColumn) and kind.declared and kind.kind in ("percent", "currency"))
    values = raw.values
    if kind.missing_numbers and isinstance(raw, NumberColumn):
        values = np.where(np.isin(values, kind.missing_numbers), np.nan, values)
    if not fits and not np.isnan(values).all():
        brought = "dates" if isinstance(raw, DateColumn) else "numbers without a unit"
        if isinstance(raw, NumberColumn) and kind.kind == "date":
            brought = "numbers"
        raise place.error(
            f"contains {brought}, but its type is {KIND_NAMES[kind.kind]}",
            "bring the column with this type, as in the training"
            if of_model
            else "bring the column with this type, or declare another one in columns",
        )
    return ColumnValues(values, kind)


def _without_infinities(column: ColumnValues) -> ColumnValues:
    """Replace infinities by missing values if the column's type reads misfits as missing."""
    infinite = np.isinf(column.values)
    if column.type.on_error == "refuse" or not infinite.any():
        return column
    remark = f"{int(infinite.sum()):,} infinite values, which are read as missing"
    return column._replace(values=np.where(infinite, np.nan, column.values), remarks=(*column.remarks, remark))


def _handle_misfits(
    place: Place, raw: TextColumn, kind: ColumnType, misfits: Sequence[int], *, of_model: bool
) -> tuple[str, ...]:
    """Raise an error for values that do not fit the type, or return a remark that they are read as missing values.

    The remedy does not suggest a declaration if the type was fixed by a trained model.
    """
    if not misfits:
        return ()
    rows = int(np.isin(raw.positions, misfits).sum())
    present = int((raw.positions >= 0).sum())
    if kind.on_error == "missing":
        return (f"{rows:,} of {present:,} values that are not {KIND_NAMES[kind.kind]} and are read as missing",)
    row = _first_row(raw, misfits)
    text = raw.texts[raw.positions[row - 1]].strip()
    mark = f" (the mark {text!r})" if text in SUSPECTED_MARKS else ""
    example = f'"{text}"' if mark else '"MARK"'
    what, has_unit = KIND_NAMES[kind.kind], kind.unit or kind.kind == "percent"
    unit = "; they may have no unit, or another one" if has_unit else ""
    if kind.kind == "number" and text.endswith("%"):
        unit = "; they have a percent sign"
    count = f"{rows:,} of its {present:,} values"
    if kind.kind == "number" and not kind.declared and parse_dates([raw.texts[index] for index in misfits]) is not None:
        raise place.error(
            f"contains {what}, but {count} are dates, first in row {row}",
            "export all values of the column as dates; a spreadsheet may have written some as serial numbers of days",
            row=row,
            misfits=rows,
        )
    if of_model:
        raise place.error(
            f"contained {what} in the training, but {count} do not fit, first in row {row}{mark}{unit}",
            "write these values as in the training, or train again with a declaration of this column",
            row=row,
            misfits=rows,
        )
    declaration = f'{place.column} = {{ type = "{kind.kind}", missing = [{example}] }} in a file for --columns'
    raise place.error(
        f"contains {what}, but {count} do not fit, first in row {row}{mark}{unit}",
        f'correct these values; or declare {declaration}, or on_error = "missing" to read all of them as missing',
        row=row,
        misfits=rows,
    )


def _first_row(raw: TextColumn, positions: Sequence[int]) -> int:
    """Return the number, from 1, of the first row with one of these texts."""
    return int(np.isin(raw.positions, positions).argmax()) + 1


def raw_of_arrow(place: Place, column: Any, *, delimiter: str = "") -> RawColumn:
    """Return an Arrow array or chunked array as a `NumberColumn`, `DateColumn` or `TextColumn`.

    Args:
        place: the column, as error messages name it.
        column: the Arrow array.
        delimiter: the delimiter of the CSV file that the column is from; empty for a file with types.

    Returns:
        The values as a number, date or text column. Raises TableError if its type is none of numbers, texts and dates.
    """
    pa, types = import_module("pyarrow"), import_module("pyarrow.types")
    if not isinstance(column, pa.ChunkedArray):
        column = pa.chunked_array([column])
    kind = column.type
    if types.is_date(kind) or types.is_timestamp(kind):
        return DateColumn(days_of(column.cast(pa.timestamp("us"), safe=False).to_numpy()))
    value = kind.value_type if types.is_dictionary(kind) else kind
    is_text = types.is_string(value) or types.is_large_string(value) or types.is_string_view(value)
    if is_text or types.is_dictionary(kind):
        origin: TextOrigin = "category" if types.is_dictionary(kind) else "csv" if delimiter else "text"
        texts, positions = distinct_texts(column)
        return TextColumn(texts, positions, origin, delimiter)
    check_kind(place, kind)
    return NumberColumn(float_values(column))


def check_kind(place: Place, kind: Any) -> None:
    """Raise TableError unless a column of this Arrow type can be converted to numbers."""
    types = import_module("pyarrow.types")
    numeric = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)
    if not any(is_kind(kind) for is_kind in numeric):
        raise place.error(f"is of the type {kind}, which is not numeric", "encode it as numbers or drop it")


def distinct_texts(column: Any) -> tuple[list[str], NDArray[np.intp]]:
    """Return the distinct values of an Arrow column as texts, and each row's position among them (n,).

    The position is -1 if the value is missing.
    """
    encoded = column if import_module("pyarrow.types").is_dictionary(column.type) else column.dictionary_encode()
    array = encoded.unify_dictionaries().combine_chunks()
    if isinstance(array, import_module("pyarrow").ChunkedArray):
        array = array.chunk(0) if array.num_chunks else import_module("pyarrow").array([], encoded.type)
    dictionary = [None if is_missing(value) else text_of(value) for value in array.dictionary.to_pylist()]
    indices = integer_values(array.indices)
    used = np.unique(indices).tolist()
    texts = sorted({text for index in used if index >= 0 and (text := dictionary[index]) is not None})
    rank = {text: position for position, text in enumerate(texts)}
    ranks = [-1 if text is None else rank.get(text, -1) for text in dictionary]
    return texts, np.array([*ranks, -1], dtype=np.intp)[indices]


def text_of(value: Any) -> str:
    """Return a value of a category column as a text. The numbers 100 and 100.0 give the same text "100"."""
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if isinstance(value, datetime):
        return value.date().isoformat() if value.time() == time() else value.isoformat(" ")
    if not isinstance(value, str) and is_number(str(value)) and float(value).is_integer():
        return str(int(value))
    return str(value)


def raw_of_array(place: Place, values: NDArray[Any], *, typed: bool = True) -> RawColumn:
    """Return an array (n,) of numpy as a raw column.

    Args:
        place: the column, as error messages name it.
        values: the numpy array (n,).
        typed: False if the texts of the array may be numbers that numpy converted because other values are texts.

    Returns:
        The values as a number, date or text column.

    Raises:
        TableError: if it contains objects other than numbers, texts and dates.
    """
    if values.dtype.kind in "biuf":
        return NumberColumn(values.astype(np.float64))
    if values.dtype.kind == "M":
        return DateColumn(days_of(values))
    objects = [None if is_missing(value) else value for value in values.tolist()]
    present = [value for value in objects if value is not None]
    if present and all(isinstance(value, date) for value in present):
        return DateColumn(days_of(np.array(objects, dtype="datetime64[us]")))
    if all(isinstance(value, int | float | np.number) or type(value).__name__ == "Decimal" for value in present):
        return NumberColumn(np.array([np.nan if value is None else float(value) for value in objects]))
    if not all(isinstance(value, str | int | float | np.number | np.str_) for value in present):
        raise place.error("contains objects other than numbers, texts and dates", "encode them as numbers")
    only_texts = typed and values.dtype.kind == "O" and all(isinstance(value, str) for value in present)
    texts = sorted({text_of(value) for value in present})
    rank = {text: position for position, text in enumerate(texts)}
    positions = np.array([-1 if value is None else rank[text_of(value)] for value in objects], dtype=np.intp)
    return TextColumn(texts, positions, "text" if only_texts else "csv")


def days_of(moments: NDArray[Any]) -> Floats:
    """Return datetime64 values (n,) as days since 1970-01-01, NaN for NaT."""
    days: Floats = moments.astype("datetime64[us]").astype(np.int64) / (DAY * 1e6)
    return np.where(np.isnat(moments), np.nan, days)


def release_arrow_memory(values: int) -> None:
    """Return the memory of deleted Arrow tables to the operating system; pyarrow would reserve it for later tables.

    Args:
        values: the number of values of the table that was read. Nothing happens after a small one.
    """
    if values >= _MIN_RELEASED_VALUES and (pa := sys.modules.get("pyarrow")) is not None:
        pa.default_memory_pool().release_unused()
