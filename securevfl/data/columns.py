"""Columns as they come: numbers, some of them missing, and texts of a few values.

A table of both kinds is held as numbers alone. A text is its place in the sorted list of its column's `levels`, and
what is missing is NaN, so that rows are taken, joined and summed like those of any table. Nothing is filled in here:
that takes the training rows (`securevfl.data.preparation`).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securevfl.base.arrays import Floats
from securevfl.errors import DataNotice, IdError, LabelError, TableError

# Numbers and dates as people write them: what a text stands for, where that is beyond doubt.
#
#     1,200.50   1.200,50      numbers, where both marks or two groups of three digits show which mark parts thousands
#     12 %                     numbers, if every value of the column has the sign: 12
#     2024-05-17   2024-05-17 08:30:00   dates, as days since 1970-01-01
#
# A column is read in one way or not at all. `1,200` alone may be either number, and `05/04/2024` either date; such
# dates and amounts with the sign of a currency are named as what they are (`meant`), never taken for texts.


DAY = 86_400.0  # seconds
_SIGN = r"\s*[+-]?"
_MARKS = (",", "."), (".", ",")  # between thousands, and before decimals
_GROUPED = {mark: re.compile(rf"{_SIGN}\d{{1,3}}(\{mark}\d{{3}})*(\{point}\d+)?\s*") for mark, point in _MARKS}
_CLEAR = {
    mark: re.compile(rf"{_SIGN}\d{{1,3}}((\{mark}\d{{3}})+\{point}\d*|(\{mark}\d{{3}}){{2,}})\s*")
    for mark, point in _MARKS
}
_PLAIN = re.compile(rf"{_SIGN}(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*")
_DATE = re.compile(r"\s*\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:?\d\d)?)?\s*")
_DAY_MONTH = re.compile(r"\s*\d{1,2}([/.-])\d{1,2}\1(\d{4}|\d\d)([T ,]\s*\d{1,2}:\d\d(:\d\d)?(\s*[AaPp][Mm])?)?\s*")
_CURRENCY = r"([$€£¥₹₽₩₺₫₪฿]|[A-Z]{3}|kr|zł|Kč|Fr\.?)"
_NUMBER = r"[+-]?\d[\d., '\u00a0\u202f]*"
_AMOUNT = re.compile(rf"\s*([+-]?\s*{_CURRENCY}\s*{_NUMBER}|{_NUMBER}\s*{_CURRENCY})\s*")


def numbers_written(texts: Sequence[str]) -> list[float] | None:
    """Read texts as numbers with marks between thousands, or as percentages; None unless all are, beyond doubt."""
    if are_percents(texts):
        texts = [text.rstrip()[:-1] for text in texts]
        if all(_PLAIN.fullmatch(text) for text in texts):
            return [float(text) for text in texts]
    for mark, point in _MARKS:
        if any(_CLEAR[mark].fullmatch(text) for text in texts) and all(_fits(text, mark) for text in texts):
            return [float(text.replace(mark, "").replace(point, ".")) for text in texts]
    return None


def are_percents(texts: Sequence[str]) -> bool:
    """Say whether all texts, of one or more, end with the sign of percentages."""
    return bool(texts) and all(text.rstrip().endswith("%") for text in texts)


def days_written(texts: Sequence[str]) -> list[float] | None:
    """Read texts as dates of ISO 8601, with times or without, in days since 1970-01-01; None unless all are."""
    if not texts or not all(_DATE.fullmatch(text) for text in texts):
        return None
    try:
        moments = [datetime.fromisoformat(text.strip()) for text in texts]
    except ValueError:
        return None
    return [(moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() / DAY for moment in moments]


def meant(texts: Sequence[str]) -> str:
    """Say what more than half of the texts seem to be and cannot be read as, with how to write it; empty if nothing."""
    if 2 * sum(_DAY_MONTH.fullmatch(text) is not None for text in texts) > len(texts):
        return "dates of day, month and year in an order that a column does not tell; write them as 2023-04-06"
    if 2 * sum(_AMOUNT.fullmatch(text) is not None for text in texts) > len(texts):
        return "amounts with the sign of a currency; write them as numbers, as 230000.50, of one currency a column"
    return ""


def _fits(text: str, mark: str) -> bool:
    """Whether a text is a number under this mark of thousands, or a plain one that has no other meaning under it."""
    return bool(_GROUPED[mark].fullmatch(text) or (mark == "," and _PLAIN.fullmatch(text)) or text.strip().isdigit())


def in_doubt(text: str) -> bool:
    """Whether a text has a mark within a number, which may part thousands or decimals."""
    return any(pattern.fullmatch(text) for pattern in _GROUPED.values()) and not _PLAIN.fullmatch(text)


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


class Read(NamedTuple):
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


def text_column(name: str, column: str, values: Sequence[Any], *, forced: bool = False) -> Read:
    """`text_levels` of the texts of all rows (n,), None for a missing one."""
    levels = sorted({str(value) for value in values if value is not None})
    rank = {text: place for place, text in enumerate(levels)}
    places = np.array([-1 if value is None else rank[str(value)] for value in values], dtype=np.intp)
    return text_levels(name, column, levels, places, forced=forced)


def text_levels(
    name: str, column: str, levels: Sequence[str], places: NDArray[np.intp], *, forced: bool = False
) -> Read:
    """Read what a column of texts holds, from its sorted different texts and each row's place among them (n,), -1 where
    it is missing.

    Numbers or dates where all are written as such, else places of texts in the sorted levels. forced: they are texts
    whatever they look like. TableError for numbers with errors, or that can be read in two ways.
    """
    if not forced:
        days = days_written(levels)
        written = numbers_written(levels) if days is None else days
        if written is not None:
            X = np.where(places < 0, np.nan, np.array(written)[places])
            return Read(X, dates=days is not None, percents=days is None and are_percents(levels))
        _check_mixed(name, column, levels, places)
    return Read(np.where(places < 0, np.nan, places), tuple(levels))


def _check_mixed(name: str, column: str, levels: Sequence[str], places: NDArray[np.intp]) -> None:
    """Refuse a column of dates, amounts or numbers in a form that cannot be read: slips, and no texts."""
    if what := meant(levels):
        raise TableError(
            f"{name}numbers, texts or dates of ISO 8601 were expected, column {column} seems to hold {what}"
        )
    numbers = sum(map(is_number, levels))
    parted = sum(_PARTED.fullmatch(level) is not None and not is_number(level) for level in levels)
    if parted and numbers + parted == len(levels):
        row = int(np.isin(places, [place for place, level in enumerate(levels) if in_doubt(level)]).argmax())
        raise TableError(
            f"{name}numbers with a decimal point and nothing else were expected, column {column} has separators within "
            f"numbers that can be read in two ways, first in row {row + 1}; export it without"
        )
    if numbers > FEW and 2 * numbers >= len(levels):
        raise TableError(
            f"{name}numbers or texts were expected, column {column} mixes them: {len(levels) - numbers} of its "
            f"{len(levels)} different values are no numbers; correct these, leave them empty, or drop the column"
        )


def is_number(text: str) -> bool:
    """Whether a text is a plain number; one with _ within, which Python reads, is none."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def _check_shape(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 2 or 0 in shape:
        raise TableError(f"party {name}: a table of rows x columns was expected, an array of shape {shape} came")


def _renamed(name: str, names: list[str], columns: Sequence[str] | None, d: int) -> list[str]:
    named = names if columns is None else [str(column) for column in columns]
    if len(named) != d:
        raise TableError(f"party {name}: {d} column names were expected, {len(named)} came")
    return named


def _column(name: str, column: str, values: NDArray[Any], text: bool) -> Read:
    """One column as numbers, and its levels if it holds texts."""
    if values.dtype.kind in "biuf" and not text:
        return Read(values.astype(np.float64))
    if values.dtype.kind == "M" and not text:
        return Read(days_of(values), dates=True)
    held = [None if _lacks(value) else value for value in values.tolist()]
    if text:
        return text_column(f"party {name}: ", column, held, forced=True)
    try:
        return Read(np.array([np.nan if value is None else float(value) for value in held]))
    except (TypeError, ValueError):
        if all(isinstance(value, date | None) for value in held):
            return Read(days_of(np.array(held, dtype="datetime64[us]")), dates=True)
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


def _lacks(value: Any) -> bool:
    """Whether it stands for a missing value: None, NaN, or what pandas has for these."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float) and value != value


def joined(names: list[str], columns: Sequence[Read]) -> Columns:
    """Return one table of these columns."""
    held = dict(zip(names, columns, strict=True))
    levels = {name: read.levels for name, read in held.items() if read.levels}
    dates = frozenset(name for name, read in held.items() if read.dates)
    percents = frozenset(name for name, read in held.items() if read.percents)
    return Columns(np.column_stack([read.values for read in columns]), names, levels, dates, percents)


# What a user hands in beside columns: labels, the index of a frame; and what is refused or noticed of columns.
#
# A frame is known by what it offers. Nothing of pandas, polars or SciPy is imported.


MISSING = frozenset(  # texts that stand for a missing value, those that Arrow takes for one
    [
        *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "N/A", "NA"),
        *("NULL", "NaN", "n/a", "nan", "null"),
    ]
)


def check_extremes(name: str, low: Floats, high: Floats, columns: Sequence[str], rows: int) -> list[str]:
    """Find the columns that do not vary, from the least and largest (d,) value of each; a DataNotice says that they get
    no weight.

    NaN and infinities show in the extremes. TableError names columns that hold them, or if no column varies.
    """
    check_finite(name, np.isfinite(low) & np.isfinite(high), columns)
    constant = [columns[j] for j in np.flatnonzero(low == high).tolist()]
    if not constant or rows == 1:
        return []
    if len(constant) == len(columns):
        raise TableError(f"party {name}: columns that vary were expected, constant: {some(constant)}; bring others")
    notice = f"party {name}: columns that do not vary get no weight: {some(constant)}"
    warnings.warn(notice, DataNotice, stacklevel=3)
    return constant


def check_finite(name: str, finite: NDArray[np.bool_], columns: Sequence[str]) -> None:
    """Whether each column (d,) is. TableError names those that are not."""
    bad = [columns[j] for j in np.flatnonzero(~finite).tolist()]
    if bad:
        raise TableError(f"party {name}: finite numbers were expected, NaN or infinities are in {some(bad)}; fill them")


def check_labels(name: str, y: ArrayLike, rows: int) -> NDArray[Any]:
    """Labels (rows,) as an array of numbers or text. TableError, or LabelError if some are missing."""
    labels = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != (rows,):
        raise TableError(f"party {name}: one label for each of {rows} rows was expected, shape {labels.shape} came")
    if labels.dtype.kind == "f":
        missing = int((~np.isfinite(labels)).sum())
    elif labels.dtype.kind in "OUS":
        missing = sum(map(_is_missing, labels.tolist()))
    else:
        missing = 0
    if missing:
        raise LabelError(
            f"party {name}: finite labels were expected, {missing} are missing, NaN or infinite; drop those rows"
        )
    if labels.dtype.kind == "O":
        labels = np.asarray(labels.tolist())
        labels = labels.astype(str) if labels.dtype.kind == "O" else labels
    return labels


def _is_missing(value: Any) -> bool:
    """Whether it stands for no value: as CSV writes it, None, and the NaN, NaT and NA of Python and of frames."""
    if isinstance(value, str):
        return value in MISSING
    return _lacks(value) or (isinstance(value, float) and not np.isfinite(value))


def index_ids(name: str, X: Any, y: Any) -> NDArray[Any] | None:
    """Return the ids that the index of a frame gives: those of an index with a name, or with values other than 0 to n -
    1; None for any other.

    IdError if labels come with another index than the columns.
    """
    index = _index(X)
    if index is None:
        return None
    values = np.asarray(index)
    of_labels = _index(y)
    if of_labels is not None and not np.array_equal(np.asarray(of_labels), values):
        raise IdError(f"party {name}: labels in the rows of the columns were expected, their indexes differ; join them")
    named = getattr(index, "name", None) is not None
    return values if named or not np.array_equal(values, np.arange(len(values))) else None


def _index(table: Any) -> Any:
    """Return the index of a frame or of one column of it; None for a list, whose `index` is a method."""
    index = getattr(table, "index", None)
    return None if index is None or callable(index) else index


def some(names: Sequence[str], most: int = 5) -> str:
    """List the first names, five unless told otherwise, and say how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def check_chosen(names: Collection[str], chosen: Sequence[str], who: str = "") -> None:
    """Columns that a model was trained on, among those of a table. TableError names the missing."""
    if lacking := [column for column in chosen if column not in names]:
        raise TableError(f"{who}columns of the training were expected, missing: {some(lacking, 10)}; add them")
