"""Tables from files: CSV (also compressed: .csv.gz, .csv.zst), Parquet and npz.

`read_party` and `read_table` read a whole file into memory, `read_ids` reads its ids alone. A CSV or Parquet file has
one row for each sample, an id column, a label column at one party, and otherwise columns of numbers, texts and dates.
An npz file has the arrays X (n, d) and ids (n,), y (n,) at one party, and optionally columns (d names).

CSV and Parquet files are read by pyarrow, in one thread. Every column of a CSV file is read as text and converted here.
So ids remain as they are ("007"), and errors name the row and the column: the messages of pyarrow contain values and
never reach a user. The delimiter of values is that of the names in the first line: comma, semicolon or tab. If it is a
semicolon, a comma within a number is the decimal point; otherwise such a number is refused.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from securevfl.data.columns import Columns, ColumnValues, days_of, join_columns, read_texts
from securevfl.data.composite_ids import RULE_VERSION, IdColumns, compose_ids, id_columns
from securevfl.data.csv_file import CsvFile
from securevfl.data.party import Party
from securevfl.data.text_values import is_number
from securevfl.data.validation import check_chosen, name_list
from securevfl.errors import DataError, IdError, LabelError, TableError

SUFFIXES = (".csv", ".csv.gz", ".csv.zst", ".parquet", ".npz")
_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d*,?\d+([eE][+-]?\d+)?\s*")
_INDEX_COLUMN = re.compile(r"__index_level_\d+__")  # pandas' unnamed row index in Parquet


@dataclass(frozen=True)
class FileTable:
    """The unchecked contents of a file.

    Attributes:
        columns: the columns without ids and labels.
        y: the labels (n,), or None.
        ids: the ids (n,), or None.
    """

    columns: Columns
    y: NDArray[Any] | None
    ids: NDArray[Any] | None


class _OpenFile(NamedTuple):
    """A CSV or Parquet file that is open.

    Attributes:
        names: the names of its columns.
        read: reads some of the columns as an Arrow table.
        delimiter: of the values of a CSV file; empty for Parquet.
    """

    names: list[str]
    read: Callable[[Sequence[str]], Any]
    delimiter: str = ""


def read_party(name: str, path: str | Path, *, id_column: str = "id", label_column: str = "y") -> Party:
    """Read a party from a file. It is the active party if the file has the label column (npz: an array y).

    Errors name the file and the columns, and never contain a value.

    Args:
        name: the party.
        path: the file.
        id_column: the id column, or a list of columns as `--id` accepts it.
        label_column: the label column.

    Returns:
        The party. DataError of a suitable kind if the file cannot be used.

    Raises:
        IdError: if the file has no ids.
    """
    path = Path(path)
    table = read_table(path, id_column=id_column, label_column=label_column)
    with errors_name(path):
        party = Party(name, table.columns, table.y, ids=table.ids, aligned=True)
        if party.ids is None:
            raise _no_ids()
        return party


def _no_ids() -> IdError:
    return IdError("the file has no ids", "add an array named ids", code="SVFL-ID-MISSING")


def _no_rows() -> TableError:
    return TableError("the table has no rows below its header", "export the table again", code="SVFL-TABLE-EMPTY")


def read_table(
    path: str | Path,
    *,
    id_column: str = "id",
    label_column: str = "y",
    chosen: Sequence[str] | None = None,
    texts: Sequence[str] = (),
) -> FileTable:
    """Read the contents of a file without further checks.

    Args:
        path: the file.
        id_column: the id column, or a list of columns as `--id` accepts it.
        label_column: the label column.
        chosen: the columns to read, in this order, without labels; by default all.
        texts: columns that are text even if their values in a CSV file look like numbers.

    Returns:
        The contents. DataError, as in `read_party`, if the file cannot be used.

    Raises:
        TableError: if the table has no rows, or columns are missing, empty or of mixed types.
    """
    path = Path(path)
    with errors_name(path):
        if _format(path) == "npz":
            return _read_npz(path, chosen)
        file = _open_file(path, id_column)
        key = id_columns(id_column, file.names)
        columns = table_columns(file.names, key, label_column, chosen)
        labels = [label_column] if chosen is None and label_column in file.names else []
        table = file.read(list(dict.fromkeys([*key.names, *labels, *columns])))
        if not table.num_rows:
            raise _no_rows()
        empty = [name for name in columns if table[name].null_count == table.num_rows]
        if empty and chosen is None:
            raise TableError(f"column {empty[0]!r} has no values", code="SVFL-TABLE-EMPTY-COLUMN", column=empty[0])
        values, problems = list[ColumnValues](), list[TableError]()
        for name in columns:
            try:
                values.append(_column(name, table[name], file.delimiter, forced=name in texts))
            except TableError as error:
                problems.append(error)
        if problems:
            raise _combined(path, problems)
        y = labels_of(table, label_column, file.delimiter) if labels else None
        return FileTable(join_columns(columns, values), y, ids_of(table, key))


def _combined(path: Path, problems: list[TableError]) -> TableError:
    """Return one error for the problems of several columns, so that a user can correct all of them at once."""
    first, *others = problems
    if not others:
        return first
    text = f"\n{path}: ".join([str(problem) for problem in problems])
    return TableError(text, "", code=first.code, columns=[problem.fields.get("column") for problem in problems])


def read_ids(path: str | Path, *, id_column: str = "id") -> NDArray[Any]:
    """Read the ids (n,) of a file, and nothing else.

    Args:
        path: the file.
        id_column: the id column, or a list of columns as `--id` accepts it.

    Returns:
        The ids. DataError, as in `read_party`, if the file cannot be used.
    """
    path = Path(path)
    with errors_name(path):
        if _format(path) == "npz":
            arrays = _npz_arrays(path, "ids")
            if not arrays:
                raise _no_ids()
            ids = arrays["ids"]
        else:
            file = _open_file(path, id_column)
            key = id_columns(id_column, file.names)
            ids = ids_of(file.read(key.names), key)
        if not len(ids):
            raise _no_rows()
        return ids


def id_rule_version(path: str | Path, id_column: str) -> int | None:
    """Return the version of the rule that composes the ids of a file; None if ids are used as they are written."""
    path = Path(path)
    with errors_name(path):
        by_rule = _format(path) != "npz" and id_columns(id_column, _open_file(path, id_column).names).by_rule
    return RULE_VERSION if by_rule else None


def _format(path: Path) -> str:
    for suffix in SUFFIXES:
        if path.name.endswith(suffix):
            return suffix.split(".")[1]
    raise TableError(
        f"the name of a data file must end in {', '.join(SUFFIXES)}",
        "rename or convert the file",
        code="SVFL-TABLE-UNREADABLE",
    )


@contextmanager
def errors_name(path: Path) -> Iterator[None]:
    """Let errors name the file that is read, and replace the messages of libraries, which may contain values."""
    try:
        yield
    except DataError as error:
        fields = {**error.fields, "file": str(path)}
        raise type(error)(f"{path}: {error.problem}", error.remedy, code=error.code, **fields) from None
    except OSError as cause:
        reason = os.strerror(cause.errno) if cause.errno else "it is damaged"
        raise TableError(
            f"{path} cannot be read ({reason})", "check the path", code="SVFL-TABLE-UNREADABLE", file=str(path)
        ) from None


def arrow(part: str = "") -> Any:
    """Import pyarrow, or a module of it, when a file is read and not before."""
    return import_module("pyarrow" + (f".{part}" if part else ""))


def _open_file(path: Path, id_column: str) -> _OpenFile:
    """Open a CSV or Parquet file and check the names of its columns."""
    if path.suffix == ".parquet":
        file = open_parquet(path)
        names = parquet_names(file, id_column)
        return _OpenFile(names, lambda columns: read_parquet(file, columns))
    file = CsvFile(path)
    check_names(file.names, id_column)
    return _OpenFile(file.names, file.table, file.delimiter)


def _column(name: str, column: Any, delimiter: str, *, forced: bool) -> ColumnValues:
    """Read one Arrow column; `forced` reads categories, even if the texts look like numbers."""
    pa = arrow()
    if _holds_dates(column.type):
        return ColumnValues(days_of(column.cast(pa.timestamp("us")).to_numpy()), dates=True)
    if not _holds_texts(column.type):
        check_kind(name, column.type)
        return ColumnValues(column.cast(pa.float64(), safe=False).to_numpy())
    if delimiter and not forced:
        try:
            return ColumnValues(column.cast(pa.float64()).to_numpy())
        except pa.ArrowInvalid:
            pass  # at least one text is not a plain number
    positions, texts = _distinct(column)
    numbers = _plain_numbers(name, texts, delimiter) if delimiter and not forced else None
    if numbers is not None:
        return ColumnValues(np.where(positions < 0, np.nan, np.array(numbers)[positions]))
    return read_texts(None, name, texts, positions, forced=forced)


def _distinct(column: Any) -> tuple[NDArray[np.intp], list[str]]:
    """Return the position (n,) of each row's text among the distinct ones, -1 if it is missing, and these, sorted."""
    encoded = column if arrow("types").is_dictionary(column.type) else column.dictionary_encode()
    array = encoded.unify_dictionaries().combine_chunks()
    dictionary = array.dictionary.to_pylist()
    indices = array.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.intp)
    used = np.unique(indices).tolist()
    texts = sorted({dictionary[index] for index in used if index >= 0 and dictionary[index] is not None})
    rank = {text: position for position, text in enumerate(texts)}
    return np.array([*(rank.get(text, -1) for text in dictionary), -1], dtype=np.intp)[indices], texts


def _plain_numbers(name: str, texts: list[str], delimiter: str) -> list[float] | None:
    """Parse texts of a CSV column as numbers with a decimal point, or a comma if semicolons separate values.

    Returns None if a text is not such a number. TableError for decimal commas with other delimiters.
    """
    if any("," in text for text in texts) and all(_DECIMAL_COMMA.fullmatch(text) for text in texts):
        if delimiter != ";":
            raise TableError(
                f"column {name!r} contains commas within numbers",
                "export it with decimal points, or with semicolons between values",
                code="SVFL-TABLE-TYPE",
                column=name,
            )
        texts = [text.replace(",", ".") for text in texts]
    return [float(text) for text in texts] if all(is_number(text) for text in texts) else None


def check_names(names: list[str], id_column: str) -> None:
    """Check the column names of a file.

    Args:
        names: the names.
        id_column: the id column, or a list of columns as `--id` accepts it.

    Raises:
        TableError: if the first line is not a header, or names are empty or repeated.
        IdError: if the id column is missing.
    """
    if not set(id_columns(id_column, names).names) <= set(names):
        if len(names) == 1 and "|" in names[0]:
            raise TableError(
                "the values seem to be separated by |",
                "export the file with commas, semicolons or tabs",
                code="SVFL-TABLE-HEADER",
            )
        if any(is_number(name) for name in names):
            raise TableError(
                "the first line contains numbers instead of column names", "add a header", code="SVFL-TABLE-HEADER"
            )
        raise IdError(
            f"there is no id column {id_column!r}; the columns are {name_list(names, 20)}",
            "name the id column with --id",
            code="SVFL-ID-COLUMN",
            column=id_column,
        )
    if not all(names):
        number = names.index("") + 1
        raise TableError(
            f"column {number} has no name", "name or remove it", code="SVFL-TABLE-HEADER", column_number=number
        )
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise TableError(
            f"several columns have the name {name_list(repeated)}",
            "rename columns so that all names differ",
            code="SVFL-TABLE-HEADER",
            columns=repeated,
        )


def table_columns(names: list[str], key: IdColumns, label_column: str, chosen: Sequence[str] | None) -> list[str]:
    """Select the columns of a file that are neither ids nor labels.

    Args:
        names: all columns of the file.
        key: the id columns.
        label_column: the label column.
        chosen: select these columns instead.

    Returns:
        The names of the columns.

    Raises:
        TableError: if no column is left. `check_chosen` raises it if chosen columns are missing.
    """
    if chosen is not None:
        check_chosen(names, chosen)
    columns = list(chosen or (name for name in names if name not in (*key.names, label_column)))
    if not columns:
        raise TableError(
            "the table has no columns in addition to ids and labels", "add columns", code="SVFL-TABLE-EMPTY"
        )
    return columns


def check_kind(name: str, kind: Any) -> None:
    """Check that a column can be converted to numbers.

    Args:
        name: the column, for messages.
        kind: its Arrow type.

    Raises:
        TableError: if it cannot.
    """
    types = arrow("types")
    numeric = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)
    if not any(is_kind(kind) for is_kind in numeric):
        raise TableError(
            f"column {name!r} is of the type {kind}, which is not numeric",
            "encode it as numbers or drop it",
            code="SVFL-TABLE-TYPE",
            column=name,
        )


def open_parquet(path: Path, **options: Any) -> Any:
    """Open a Parquet file.

    Args:
        path: the file.
        **options: options of `pyarrow.parquet.ParquetFile`.

    Returns:
        The open file.

    Raises:
        TableError: if it is not a Parquet file, or damaged.
    """
    try:
        return arrow("parquet").ParquetFile(path, **options)
    except arrow().ArrowException:
        raise TableError(
            "the file is not a Parquet file, or damaged", "export it again", code="SVFL-TABLE-UNREADABLE"
        ) from None


def parquet_names(file: Any, id_column: str) -> list[str]:
    """Return the checked column names of a Parquet file (`check_names`), without those of an unnamed row index."""
    names = [name for name in file.schema_arrow.names if not _INDEX_COLUMN.fullmatch(name)]
    check_names(names, id_column)
    return names


def read_parquet(file: Any, columns: Sequence[str]) -> Any:
    """Read columns of a Parquet file.

    Args:
        file: the open file.
        columns: the names of the columns.

    Returns:
        An Arrow table with these columns, in this order.

    Raises:
        TableError: if the file is damaged.
    """
    try:
        table = file.read(columns=list(columns), use_threads=False).select(columns)
        table.validate(full=True)  # invalid UTF-8 would be refused later, with a message that contains it
        return table
    except arrow().ArrowException:
        raise TableError("the Parquet file is damaged", "export it again", code="SVFL-TABLE-UNREADABLE") from None


def _holds_dates(kind: Any) -> bool:
    """Return whether a column of this Arrow type holds dates, with or without times."""
    types = arrow("types")
    return bool(types.is_date(kind) or types.is_timestamp(kind))


def _holds_texts(kind: Any) -> bool:
    """Return whether a column of this Arrow type holds texts, in full or by their positions in a dictionary."""
    types = arrow("types")
    value = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(value) or types.is_large_string(value) or types.is_string_view(value))


def ids_of(table: Any, key: IdColumns) -> NDArray[Any]:
    """Return the ids (n,) of an Arrow table; IdError if one is missing."""
    ids = arrow_ids(table, key)
    if arrow().types.is_string(ids.type):
        return np.array(ids.to_pylist(), object)  # to_numpy would load pandas if it is installed
    return ids.to_numpy()


def arrow_ids(table: Any, key: IdColumns) -> Any:
    """Return the ids of an Arrow table as a chunked array.

    Args:
        table: the table.
        key: its id columns.

    Returns:
        The ids.

    Raises:
        IdError: if a row has no id.
    """
    for name in key.names:
        if missing := table[name].null_count:
            raise IdError(
                f"{missing} rows have no id in column {name!r}",
                "fill them in, or drop these rows",
                code="SVFL-ID-MISSING",
                column=name,
                missing=missing,
            )
    if not key.by_rule:
        return table[key.names[0]]
    return arrow().chunked_array([compose_ids([table[name].to_pylist() for name in key.names])])


def labels_of(table: Any, label_column: str, delimiter: str = "") -> NDArray[Any]:
    """Return the labels of an Arrow table.

    Args:
        table: the table.
        label_column: its label column.
        delimiter: of a CSV file, whose texts are converted to numbers if all of them are numbers.

    Returns:
        The labels (n,).

    Raises:
        LabelError: if a row has no label.
    """
    column = table[label_column]
    if column.null_count:
        raise LabelError(
            f"{column.null_count} rows have no label in column {label_column!r}",
            code="SVFL-LABEL-MISSING",
            column=label_column,
            missing=column.null_count,
        )
    labels: NDArray[Any] = column.to_numpy()
    if delimiter == ";" and all(map(_DECIMAL_COMMA.fullmatch, column.unique().to_pylist())):
        labels = np.array([label.replace(",", ".") for label in labels.tolist()], dtype=object)
    for kind in (np.int64, np.float64) if delimiter else ():
        try:
            return labels.astype(kind)
        except (ValueError, OverflowError):
            continue
    return labels


def _npz_arrays(path: Path, *names: str) -> dict[str, NDArray[Any]]:
    """Return those of the named arrays that the file contains."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in names if name in arrays}
    except FileNotFoundError:
        raise
    except (AttributeError, EOFError, TypeError, ValueError, OSError, zipfile.BadZipFile):
        raise TableError(
            "the file is not an npz file of plain arrays, is damaged or contains objects",
            "save it again with numpy.savez",
            code="SVFL-TABLE-UNREADABLE",
        ) from None


def _read_npz(path: Path, chosen: Sequence[str] | None) -> FileTable:
    arrays = _npz_arrays(path, "X", "y", "ids", "columns")
    if "X" not in arrays:
        raise TableError(
            "the npz file has no array X (n, d)", "save the table under this name", code="SVFL-TABLE-UNREADABLE"
        )
    X = arrays["X"]
    if X.dtype.kind not in "biuf":
        raise TableError("array X contains text", "encode it as numbers", code="SVFL-TABLE-TYPE")
    columns = arrays.get("columns")
    names = [f"x{j}" for j in range(X.shape[-1] if X.ndim else 0)] if columns is None else [str(c) for c in columns]
    if chosen is None:
        return FileTable(Columns(X, names), arrays.get("y"), arrays.get("ids"))
    check_chosen(names, chosen)
    X = X[:, [names.index(column) for column in chosen]]
    return FileTable(Columns(X, list(chosen)), None, arrays.get("ids"))
