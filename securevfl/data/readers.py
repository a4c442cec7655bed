"""Tables from files: CSV (also compressed: .csv.gz, .csv.zst), Parquet and npz, whole to a `Party`, or their ids alone.

A CSV or Parquet file has one row a sample, a column of ids, at one party a column of labels, and otherwise columns of
numbers, texts and dates. An npz file has arrays X (n x d), ids (n,), at one party y (n,), and optionally columns (d
names).

CSV and Parquet are read by pyarrow, on one thread. Every column of a CSV file is read as text and converted here, so
that ids stay what they are ("007") and errors name the row and the column: messages of the library hold values, and
none of them reaches a user. Values are parted by what parts the names in the first line: commas, semicolons or tabs. In
a file of semicolons a comma within a number is the decimal point; elsewhere such a number is named as what it is.
"""

from __future__ import annotations

import csv
import io
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from securevfl.data.columns import Columns, ColumnValues, days_of, joined, text_levels
from securevfl.data.composite_ids import RULE, IdColumns, composed, id_columns
from securevfl.data.party import Party
from securevfl.data.text_values import is_number
from securevfl.data.validation import MISSING, check_chosen, some
from securevfl.errors import DataError, IdError, LabelError, TableError

SUFFIXES = (".csv", ".csv.gz", ".csv.zst", ".parquet", ".npz")
BLOCK = 4 << 20  # bytes of a CSV file that are parsed at a time; no row may be longer
_SEPARATORS = ",", ";", "\t"
_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d*,?\d+([eE][+-]?\d+)?\s*")
_NOT_UTF8 = 'a CSV file with a header, in UTF-8, was expected; export it so, in a spreadsheet as "CSV UTF-8"'
_ROW_NAMES = re.compile(r"__index_level_\d+__")  # pandas' unnamed row index in Parquet


@dataclass(frozen=True)
class FileTable:
    """What a file holds, not yet checked: its columns without ids and labels, and these where there are any."""

    held: Columns
    y: NDArray[Any] | None
    ids: NDArray[Any] | None


class _Opened(NamedTuple):
    """A CSV or Parquet file: the names of its columns, how to read some of them as an Arrow table, and what separates
    the values of a CSV file, empty for Parquet."""

    names: list[str]
    read: Callable[[Sequence[str]], Any]
    separator: str = ""


def read_party(name: str, path: str | Path, *, id_column: str = "id", label_column: str = "y") -> Party:
    """Read a party from a file; it is the active one if the file has the label column (npz: an array y).

    Raises DataError of the kind that fits, naming the file and the columns, never a value.
    """
    path = Path(path)
    table = read_table(path, id_column=id_column, label_column=label_column)
    with named(path):
        party = Party(name, table.held, table.y, ids=table.ids, aligned=True)
        if party.ids is None:
            raise IdError("ids were expected, none came; add an array ids")
        return party


def read_table(
    path: str | Path,
    *,
    id_column: str = "id",
    label_column: str = "y",
    chosen: Sequence[str] | None = None,
    texts: Sequence[str] = (),
) -> FileTable:
    """Read what a file holds, as it stands and not checked further; with `chosen` these columns alone, in this order.

    texts: columns that hold texts, though they may look like numbers in a CSV file.
    DataError as `read_party`, and TableError that names chosen columns which are not there.
    """
    path = Path(path)
    with named(path):
        if _format(path) == "npz":
            return _read_npz(path, chosen)
        file = _open_file(path, id_column)
        key = id_columns(id_column, file.names)
        columns = table_columns(file.names, key, label_column, chosen)
        labels = [label_column] if chosen is None and label_column in file.names else []
        table = file.read(list(dict.fromkeys([*key.names, *labels, *columns])))
        if not table.num_rows:
            raise TableError("rows were expected below the header, none came; export the table again")
        empty = [name for name in columns if table[name].null_count == table.num_rows]
        if empty and chosen is None:
            raise TableError(f"columns with values were expected, column {empty[0]} is empty; drop it")
        held, wrong = list[ColumnValues](), list[str]()
        for name in columns:
            try:
                held.append(_column(name, table[name], file.separator, forced=name in texts))
            except TableError as error:
                wrong.append(str(error))
        if wrong:  # all at once, so that a file is mended once
            raise TableError(f"\n{path}: ".join(wrong))
        y = labels_of(table, label_column, file.separator) if labels else None
        return FileTable(joined(columns, held), y, ids_of(table, key))


def read_ids(path: str | Path, *, id_column: str = "id") -> NDArray[Any]:
    """Read the ids of a file (n,), and nothing else of it. Raises DataError as `read_party` does, IdError if there are
    none."""
    path = Path(path)
    with named(path):
        if _format(path) == "npz":
            arrays = _npz_arrays(path, "ids")
            if not arrays:
                raise IdError("ids were expected, none came; add an array ids")
            ids = arrays["ids"]
        else:
            file = _open_file(path, id_column)
            key = id_columns(id_column, file.names)
            ids = ids_of(file.read(key.names), key)
        if not len(ids):
            raise TableError("rows were expected below the header, none came; export the table again")
        return ids


def id_rule_version(path: str | Path, id_column: str) -> int | None:
    """Return the number of the rule by which ids of a file are made of its columns; None of one as it is written."""
    path = Path(path)
    with named(path):
        by_rule = _format(path) != "npz" and id_columns(id_column, _open_file(path, id_column).names).by_rule
    return RULE if by_rule else None


def _format(path: Path) -> str:
    for suffix in SUFFIXES:
        if path.name.endswith(suffix):
            return suffix.split(".")[1]
    raise TableError(f"a file that ends in {', '.join(SUFFIXES)} was expected; rename or convert it")


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Errors in reading a file name it, and say nothing of what the library that read it says."""
    try:
        yield
    except DataError as error:
        raise type(error)(f"{path}: {error}") from None
    except OSError as cause:
        reason = os.strerror(cause.errno) if cause.errno else "it is damaged"
        raise TableError(f"{path}: a readable table was expected there ({reason}); check the path") from None


def arrow(part: str = "") -> Any:
    """Import the module pyarrow, or a part of it, when a file is read and not before."""
    return import_module("pyarrow" + (f".{part}" if part else ""))


def _open_file(path: Path, id_column: str) -> _Opened:
    """Open a CSV or Parquet file and check the names of its columns."""
    if path.suffix == ".parquet":
        file = open_parquet(path)
        names = parquet_names(file, id_column)
        return _Opened(names, lambda wanted: read_parquet(file, wanted))
    names, separator = _head(path)
    if not names:
        raise TableError("a header and rows were expected, the file is empty; export it again")
    check_names(names, id_column)
    return _Opened(names, lambda wanted: _read_csv(path, names, separator, wanted), separator)


@contextmanager
def _lines(path: Path) -> Iterator[TextIO]:
    """Open a CSV file, which may be compressed, as lines of text."""
    try:
        with arrow().input_stream(str(path)) as file:
            yield io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    except (UnicodeDecodeError, csv.Error):
        raise TableError(_NOT_UTF8) from None


def _head(path: Path) -> tuple[list[str], str]:
    """Read the column names in the first line and what separates them: of , ; and tab the one that gives the most."""
    with _lines(path) as file:
        first = file.readline()
        while first.count('"') % 2 and (more := file.readline()):  # a name that goes on in the next line
            first += more
    split = {separator: next(csv.reader([first], delimiter=separator), []) for separator in _SEPARATORS}
    separator = max(_SEPARATORS, key=lambda mark: len(split[mark]))
    return split[separator], separator


def _read_csv(path: Path, names: list[str], separator: str, wanted: Sequence[str]) -> Any:
    """Read these columns as an Arrow table of texts, null where one is missing. TableError names the line that can't be
    read, and never a value."""
    pa, reader = arrow(), arrow("csv")
    ragged = list[int]()

    def skip(row: Any) -> str:
        ragged.append(row.actual_columns)
        return "skip"

    try:
        with pa.input_stream(str(path)) as file:
            table = reader.read_csv(
                file,
                reader.ReadOptions(use_threads=False, block_size=BLOCK, column_names=names, skip_rows_after_names=1),
                reader.ParseOptions(delimiter=separator, newlines_in_values=True, invalid_row_handler=skip),
                reader.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()),
                    include_columns=wanted,
                    null_values=sorted(MISSING),
                    strings_can_be_null=True,
                ),
            )
    except pa.ArrowInvalid:
        with _lines(path) as file:
            if len(file.readlines(1)) and not file.read(1):  # a header without an end of line
                return pa.table({name: pa.array([], pa.string()) for name in wanted})
        raise TableError(_NOT_UTF8) from None
    if ragged:
        raise TableError(_ragged(path, len(names), separator, ragged[0]))
    return table


def _ragged(path: Path, expected: int, separator: str, came: int) -> str:
    """Say which line has another number of values than there are columns."""
    with _lines(path) as file:
        rows = csv.reader(file, delimiter=separator)
        line = next((rows.line_num for row in rows if row and len(row) != expected), None)
    where = "" if line is None else f" in line {line}"
    return f"{expected} values a line were expected, {came} came{where}; correct the file"


def _column(name: str, column: Any, separator: str, *, forced: bool) -> ColumnValues:
    """Read one Arrow column; forced: as texts, whatever they look like. TableError names the column."""
    pa = arrow()
    if _holds_dates(column.type):
        return ColumnValues(days_of(column.cast(pa.timestamp("us")).to_numpy()), dates=True)
    if not _holds_texts(column.type):
        check_kind(name, column.type)
        return ColumnValues(column.cast(pa.float64(), safe=False).to_numpy())
    if separator and not forced:
        try:
            return ColumnValues(column.cast(pa.float64()).to_numpy())
        except pa.ArrowInvalid:
            pass  # at least one is no plain number
    places, levels = _encoded(column)
    numbers = _plain_numbers(name, levels, separator) if separator and not forced else None
    if numbers is not None:
        return ColumnValues(np.where(places < 0, np.nan, np.array(numbers)[places]))
    return text_levels("", name, levels, places, forced=forced)


def _encoded(column: Any) -> tuple[NDArray[np.intp], list[str]]:
    """Return the sorted different texts of an Arrow column, and the place of each row's among them (n,), -1 where it is
    missing."""
    coded = column if arrow("types").is_dictionary(column.type) else column.dictionary_encode()
    whole = coded.unify_dictionaries().combine_chunks()
    texts = whole.dictionary.to_pylist()
    used = np.unique(places := whole.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.intp))
    levels = sorted({texts[place] for place in used.tolist() if place >= 0 and texts[place] is not None})
    rank = {text: k for k, text in enumerate(levels)}
    return np.array([*(rank.get(text, -1) for text in texts), -1], dtype=np.intp)[places], levels


def _plain_numbers(name: str, levels: list[str], separator: str) -> list[float] | None:
    """Read texts of a CSV column as numbers with a decimal point, or in a file of semicolons with a comma; None if one
    of them is something else. TableError for decimal commas elsewhere."""
    if any("," in text for text in levels) and all(_DECIMAL_COMMA.fullmatch(text) for text in levels):
        if separator != ";":
            raise TableError(
                f"numbers with a decimal point were expected, column {name} has commas within numbers; export it with "
                "points, or with semicolons between values"
            )
        levels = [text.replace(",", ".") for text in levels]
    return [float(text) for text in levels] if all(is_number(text) for text in levels) else None


def check_names(names: list[str], id_column: str) -> None:
    """Check the names of all columns of a file. Raises TableError if they do not look like a header, IdError if the id
    column is not among them."""
    if not set(id_columns(id_column, names).names) <= set(names):
        if len(names) == 1 and "|" in names[0]:
            raise TableError(
                "values parted by commas, semicolons or tabs were expected, the first line has |; export it so"
            )
        if any(is_number(name) for name in names):
            raise TableError("a header with column names was expected, the first line holds numbers; add a header")
        raise IdError(
            f"an id column {id_column!r} was expected, columns are {some(names, 20)}; name the right one with --id"
        )
    if not all(names):
        raise TableError(
            f"a name for every column was expected, column {names.index('') + 1} has none; name or drop it"
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise TableError(f"columns of different names were expected, twice: {', '.join(twice[:5])}; rename one of each")


def table_columns(names: list[str], key: IdColumns, label_column: str, chosen: Sequence[str] | None) -> list[str]:
    """Return the columns of a file beside ids and labels, or the chosen ones. TableError if some are missing, or none
    is left."""
    if chosen is not None:
        check_chosen(names, chosen)
    columns = list(chosen or (name for name in names if name not in (*key.names, label_column)))
    if not columns:
        raise TableError("at least one column beside ids and labels was expected, none came; add columns")
    return columns


def check_kind(name: str, kind: Any) -> None:
    """Check that the Arrow type of a column can hold numbers. Raises TableError otherwise."""
    types = arrow("types")
    numbers = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)
    if not any(fits(kind) for fits in numbers):
        raise TableError(f"numbers were expected, column {name} holds {kind}; encode it as numbers or drop it")


def open_parquet(path: Path, **options: Any) -> Any:
    """Open a Parquet file. Raises TableError if it is none."""
    try:
        return arrow("parquet").ParquetFile(path, **options)
    except arrow().ArrowException:
        raise TableError("a Parquet file was expected; it is none, or it is damaged") from None


def parquet_names(file: Any, id_column: str) -> list[str]:
    """Return the names of all columns of a Parquet file without those of a row index, checked as `check_names` does."""
    names = [name for name in file.schema_arrow.names if not _ROW_NAMES.fullmatch(name)]
    check_names(names, id_column)
    return names


def read_parquet(file: Any, columns: Sequence[str]) -> Any:
    """Read columns of a Parquet file as an Arrow table, in this order. Raises TableError if the file is damaged."""
    try:
        table = file.read(columns=list(columns), use_threads=False).select(columns)
        table.validate(full=True)  # texts that are none would be refused later, with the text
        return table
    except arrow().ArrowException:
        raise TableError("a whole Parquet file was expected, it is damaged; export it again") from None


def _holds_dates(kind: Any) -> bool:
    """Whether a column of this Arrow type holds dates, with times or without."""
    types = arrow("types")
    return bool(types.is_date(kind) or types.is_timestamp(kind))


def _holds_texts(kind: Any) -> bool:
    """Whether a column of this Arrow type holds texts, each value in full or by its place in a dictionary."""
    types = arrow("types")
    value = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(value) or types.is_large_string(value) or types.is_string_view(value))


def ids_of(table: Any, key: IdColumns) -> NDArray[Any]:
    """Ids of an Arrow table by these columns of it. IdError if one is missing."""
    ids = arrow_ids(table, key)
    if arrow().types.is_string(ids.type):
        return np.array(ids.to_pylist(), object)  # to_numpy would load pandas, where it is installed
    return ids.to_numpy()


def arrow_ids(table: Any, key: IdColumns) -> Any:
    """Return `ids_of` as an Arrow array in chunks."""
    for name in key.names:
        if missing := table[name].null_count:
            raise IdError(f"an id in every row was expected, {missing} rows have none in {name}; fill them")
    if not key.by_rule:
        return table[key.names[0]]
    return arrow().chunked_array([composed([table[name].to_pylist() for name in key.names])])


def labels_of(table: Any, label_column: str, separator: str = "") -> NDArray[Any]:
    """Labels of an Arrow table; of a CSV file, whose separator this is, as numbers where its texts read as such.
    LabelError if one is missing."""
    column = table[label_column]
    if column.null_count:
        raise LabelError(
            f"a label in every row was expected, {column.null_count} rows have none in {label_column}; drop those rows"
        )
    labels: NDArray[Any] = column.to_numpy()
    if separator == ";" and all(map(_DECIMAL_COMMA.fullmatch, column.unique().to_pylist())):
        labels = np.array([label.replace(",", ".") for label in labels.tolist()], dtype=object)
    for kind in (np.int64, np.float64) if separator else ():
        try:
            return labels.astype(kind)
        except (ValueError, OverflowError):
            continue
    return labels


def _npz_arrays(path: Path, *wanted: str) -> dict[str, NDArray[Any]]:
    """Those of the wanted arrays that are in the file."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {key: arrays[key] for key in wanted if key in arrays}
    except FileNotFoundError:
        raise
    except (AttributeError, EOFError, TypeError, ValueError, OSError, zipfile.BadZipFile):
        raise TableError(
            "an npz file of plain arrays was expected; it is none, is damaged or holds objects; save it again"
        ) from None


def _read_npz(path: Path, chosen: Sequence[str] | None) -> FileTable:
    arrays = _npz_arrays(path, "X", "y", "ids", "columns")
    if "X" not in arrays:
        raise TableError("an array X (n x d) was expected in the npz file, there is none; save it under that name")
    X = arrays["X"]
    if X.dtype.kind not in "biuf":
        raise TableError("numbers were expected in X, it holds text; encode them as numbers")
    columns = arrays.get("columns")
    names = [f"x{j}" for j in range(X.shape[-1] if X.ndim else 0)] if columns is None else [str(c) for c in columns]
    if chosen is None:
        return FileTable(Columns(X, names), arrays.get("y"), arrays.get("ids"))
    check_chosen(names, chosen)
    return FileTable(Columns(X[:, [names.index(column) for column in chosen]], list(chosen)), None, arrays.get("ids"))
