"""Tables from files: CSV (also compressed: .csv.gz, .csv.zst), Parquet, Arrow IPC, folders of these two, and npz.

`read_party` and `read_table` read a whole file into memory, `read_ids` only its ids. CSV and Parquet files have one row
for each sample, an id column, at one party a label column, and further columns of numbers, texts and dates. An npz file
has the arrays X (n, d), ids (n,), at one party y (n,), and optionally columns (d names). If the user requests it,
the *rule for spellings* (`securevfl.data.composite_ids`) composes ids from columns, ignoring capitals and blanks.

pyarrow reads CSV and Parquet files. A CSV file is read as texts and converted here, so that ids stay as they are
("007"). Messages of pyarrow contain values, so they are replaced by errors that name only row and column. A comma is
read as the decimal mark only in CSV files with semicolons as delimiters.
"""

from __future__ import annotations

import base64
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from securevfl.data.arrow_dataset import IPC_SUFFIXES, DatasetFile, is_arrow
from securevfl.data.arrow_values import flag_values
from securevfl.data.column_names import clean_name
from securevfl.data.column_types import ALL_COLUMNS, Types, check_declared, declared_type
from securevfl.data.columns import Columns, columns_of, combined, empty_columns_error, typed_columns
from securevfl.data.composite_ids import RULE_VERSION, IdColumns, compose_ids, id_columns
from securevfl.data.csv_file import CsvFile
from securevfl.data.csv_table import read_csv_columns
from securevfl.data.duplicates import UniqueRows, unique_rows
from securevfl.data.id_keys import id_digests
from securevfl.data.party import Party
from securevfl.data.raw_columns import ColumnValues, Place, convert_column, raw_of_arrow, release_arrow_memory
from securevfl.data.read_options import ReadOptions
from securevfl.data.text_values import is_number, parse_numbers
from securevfl.data.validation import check_chosen, name_list
from securevfl.errors import DataError, IdError, LabelError, TableError

SUFFIXES = (".csv", ".csv.gz", ".csv.zst", ".parquet", *IPC_SUFFIXES, ".npz")
_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d*,?\d+([eE][+-]?\d+)?\s*")
# the name under which pandas writes an unnamed row index to a Parquet file
_INDEX_COLUMN = re.compile(r"__index_level_\d+__")


@dataclass(frozen=True)
class FileTable:
    """The unchecked contents of a file.

    Attributes:
        columns: the columns without ids and labels.
        y: the labels (n,), or None.
        ids: the ids (n,) on which rows are joined, or None.
        key: the id columns; None for npz files.
        written: the values of the id columns as the file has them (n,), if ids are composed by the rule for spellings;
            tuples if there are several columns.
        unique: the rows of the file that remain, if an id has several rows; None if all of them do.
        labelled: whether each row (n,) has a label, if rows without one are allowed and there are such rows; `y` then
            has an arbitrary label in the others.
    """

    columns: Columns
    y: NDArray[Any] | None
    ids: NDArray[Any] | None
    key: IdColumns | None = None
    written: Sequence[Any] | None = None
    unique: UniqueRows | None = None
    labelled: NDArray[np.bool_] | None = None


class _OpenFile(NamedTuple):
    """A CSV or Parquet file that is open.

    Attributes:
        names: the names of its columns.
        read: reads the columns of its first argument as numbers, and those of the second one as an Arrow table. The
            other arguments are the types that the user declared, and those of a trained model.
        select: reads columns as an Arrow table.
        delimiter: the delimiter of a CSV file; empty for Parquet.
    """

    names: list[str]
    read: Callable[[Sequence[str], Sequence[str], Types, Types], tuple[Columns, Any]]
    select: Callable[[Sequence[str]], Any]
    delimiter: str = ""


def read_party(name: str, path: str | Path, options: ReadOptions = ReadOptions()) -> Party:
    """Read a party from a file. It is the active party if the file has the label column (npz: an array y).

    Errors name the file and the columns, and never contain a value.

    Args:
        name: name of the party.
        path: the file.
        options: the columns to read, their types, and what happens to several rows of one id.

    Returns:
        The party. A DataError (or a subclass) is raised if the file cannot be used.

    Raises:
        IdError: if the file has no ids.
    """
    return party_of_table(name, path, read_table(path, options))


def party_of_table(name: str, path: str | Path, table: FileTable) -> Party:
    """Create a party from the contents of a file; see `read_party`."""
    with errors_name(Path(path)):
        party = Party(name, table.columns, table.y, ids=table.ids, aligned=True)
        party.file_rows = None if table.unique is None else table.unique.rows
        if party.ids is None:
            raise _no_ids()
        return party


def _no_ids() -> IdError:
    return IdError("the file has no ids", "add an array named ids", code="SVFL-ID-MISSING")


def _no_rows() -> TableError:
    return TableError("the table has no rows below its header", "export the table again", code="SVFL-TABLE-EMPTY")


def read_table(path: str | Path, options: ReadOptions = ReadOptions()) -> FileTable:
    """Read the contents of a file without further checks.

    Args:
        path: the file.
        options: the columns to read, their types, and what happens to several rows of one id.

    Returns:
        The contents. A DataError (or a subclass) is raised if the file cannot be used. A notice reports types that were
        decided from values, and rows that were left out.

    Raises:
        TableError: if the table has no rows, or columns are missing, empty or of mixed types.
    """
    path = Path(path)
    with errors_name(path):
        if _format(path) == "npz":
            return _unique(path, _read_npz(path, options), options)
        label_column, chosen = options.label_column, options.chosen
        file = _open_file(path, options.id_column)
        key = id_columns(options.id_column, file.names)
        columns = table_columns(file.names, key, options)
        check_declared(options.declared, file.names)
        labels = [label_column] if chosen is None and label_column in file.names else []
        others = list(dict.fromkeys([*key.names, *labels]))
        table, arrow_table = file.read(columns, others, options.declared, options.known)
        if not len(table.X):
            raise _no_rows()
        empty = [name for name, values in zip(columns, table.X.T, strict=True) if np.isnan(values).all()]
        if empty and chosen is None:
            raise empty_columns_error(empty)
        y, labelled = _labels(arrow_table, label_column, file.delimiter, options) if labels else (None, None)
        ids, written = ids_of(arrow_table, key), written_ids(arrow_table, key)
        contents = FileTable(table, y, ids, key, written, labelled=labelled)
        del arrow_table
        release_arrow_memory(table.X.size)
        return _unique(path, contents, options)


def _labels(
    table: Any, label_column: str, delimiter: str, options: ReadOptions
) -> tuple[NDArray[Any] | None, NDArray[np.bool_] | None]:
    """Return the labels (n,), and whether each row has one if some rows have none and `options` allows that."""
    column = table[label_column]
    if not (options.unlabelled and column.null_count):
        return labels_of(table, label_column, delimiter), None
    labelled = flag_values(column.is_valid())
    if not labelled.any():
        return None, labelled
    labels = labels_of(table.filter(column.is_valid()), label_column, delimiter)
    y = np.full(len(labelled), labels[0], labels.dtype)
    y[labelled] = labels
    return y, labelled


def read_partly_labelled(name: str, path: str | Path, options: ReadOptions) -> tuple[Party, Party | None]:
    """Read a party whose rows may lack labels, to describe them.

    Args:
        name: name of the party.
        path: the file.
        options: the columns to read, their types, and what happens to several rows of one id.

    Returns:
        The party, without labels if a row lacks one; and the party of the rows that have labels, None if the file has
        no column of labels.
    """
    table = read_table(path, replace(options, unlabelled=True))
    if table.labelled is None:
        party = party_of_table(name, path, table)
        return party, party if party.active else None
    party = party_of_table(name, path, replace(table, y=None, labelled=None))
    if table.y is None:
        return party, party.take(np.empty(0, np.intp))
    rows = np.flatnonzero(table.labelled)
    labelled = party.take(rows)
    labelled.y = table.y[rows]
    return party, labelled


def _unique(path: Path, table: FileTable, options: ReadOptions) -> FileTable:
    """Use one row of each id as `options.duplicates` states; change nothing if repeated ids are to be refused later."""
    if options.duplicates == "refuse" or table.ids is None:
        return table
    unique = unique_rows(str(path), id_digests("", [table.ids]), options.duplicates)
    if unique is None:
        return table
    rows = unique.rows
    return replace(
        table,
        columns=replace(table.columns, X=table.columns.X[rows]),
        y=None if table.y is None else table.y[rows],
        ids=table.ids[rows],
        written=None if table.written is None else [table.written[row] for row in rows.tolist()],
        unique=unique,
        labelled=None if table.labelled is None else table.labelled[rows],
    )


def read_unique_ids(path: str | Path, options: ReadOptions) -> tuple[NDArray[Any], UniqueRows | None]:
    """Read the ids (m,) of a file, one row of each.

    Args:
        path: the file.
        options: the id column, and what happens to several rows of one id.

    Returns:
        The ids, and the rows of the file that remain; None if all of them do.
    """
    ids = read_ids(path, id_column=options.id_column)
    if options.duplicates == "refuse":
        return ids, None
    with errors_name(Path(path)):
        unique = unique_rows(str(path), id_digests("", [ids]), options.duplicates)
    return (ids, None) if unique is None else (ids[unique.rows], unique)


def read_ids(path: str | Path, *, id_column: str = "id") -> NDArray[Any]:
    """Read the ids (n,) of a file, and nothing else.

    Args:
        path: the file.
        id_column: the id column, or a list of columns as `--id` accepts it.

    Returns:
        The ids. A DataError (or a subclass) is raised if the file cannot be used.
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
            ids = ids_of(file.select(key.names), key)
        if not len(ids):
            raise _no_rows()
        return ids


def column_names(path: str | Path, id_column: str = "id") -> list[str]:
    """Return the names of the columns of a file.

    Args:
        path: the file.
        id_column: the id column, or a list of columns as `--id` accepts it.

    Returns:
        The names. A DataError (or a subclass) is raised if the file cannot be used.
    """
    path = Path(path)
    with errors_name(path):
        if _format(path) != "npz":
            return _open_file(path, id_column).names
        arrays = _npz_arrays(path, "X", "columns")
        if "columns" in arrays:
            return [str(name) for name in arrays["columns"]]
        return [f"x{j}" for j in range(arrays["X"].shape[-1])] if "X" in arrays else []


def id_rule_version(path: str | Path, id_column: str) -> int | None:
    """Return the version of the rule for spellings that composes the ids of a file; None if ids are used unchanged."""
    path = Path(path)
    with errors_name(path):
        by_rule = _format(path) != "npz" and id_columns(id_column, _open_file(path, id_column).names).by_rule
    return RULE_VERSION if by_rule else None


def _format(path: Path) -> str:
    if path.is_dir():
        return "folder"
    for suffix in SUFFIXES:
        if path.name.endswith(suffix):
            return suffix.split(".")[1]
    raise TableError(
        f"the name of a data file must end in {', '.join(SUFFIXES)}, or be a folder of Parquet or Arrow files",
        "rename or convert the file",
        code="SVFL-TABLE-UNREADABLE",
    )


@contextmanager
def errors_name(path: Path) -> Iterator[None]:
    """Add the file's name to errors inside the `with` block, and hide messages of libraries, which may show values."""
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
    if is_arrow(path):
        file = open_parquet(path)
        names = parquet_names(file, id_column)

        def read(columns: Sequence[str], others: Sequence[str], declared: Types, known: Types) -> tuple[Columns, Any]:
            return _parquet_columns(path, file, columns, declared, known), read_parquet(file, others)

        return _OpenFile(names, read, lambda columns: read_parquet(file, columns))
    csv_file = CsvFile(path)
    check_names(csv_file.names, id_column)

    def read_csv(columns: Sequence[str], others: Sequence[str], declared: Types, known: Types) -> tuple[Columns, Any]:
        return read_csv_columns(csv_file, columns, others, declared=declared, known=known, where=str(path))

    return _OpenFile(csv_file.names, read_csv, csv_file.table, csv_file.delimiter)


def _parquet_columns(path: Path, file: Any, columns: Sequence[str], declared: Types, known: Types) -> Columns:
    """Read columns of a Parquet file one after the other."""
    X = np.empty((file.metadata.num_rows, len(columns)))
    converted, problems = list[ColumnValues](), list[TableError]()
    for j, name in enumerate(columns):
        place = Place(None, name)
        try:
            raw = raw_of_arrow(place, read_parquet(file, [name])[name])
            result = convert_column(place, raw, declared_type(declared, name), known.get(name))
        except TableError as error:
            problems.append(error)
            continue
        X[:, j] = result.values
        converted.append(result._replace(values=X[:0, j]))
    if problems:
        raise combined(problems, str(path))
    return typed_columns(X, list(columns), converted, str(path))


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
        ends = number == len(names) > 1
        raise TableError(
            f"column {number} has no name" + (", since the header ends in a delimiter" if ends else ""),
            "remove the delimiter at the end of all lines, or name the column" if ends else "name or remove it",
            code="SVFL-TABLE-HEADER",
            column_number=number,
        )
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise TableError(
            f"several columns have the name {name_list(repeated)}",
            "rename columns so that all names differ",
            code="SVFL-TABLE-HEADER",
            columns=repeated,
        )


def table_columns(names: list[str], key: IdColumns, options: ReadOptions) -> list[str]:
    """Select the columns of a file that are neither ids nor labels.

    Args:
        names: all columns of the file.
        key: the columns from which ids are composed.
        options: the label column, the columns to leave out, or the columns to select instead.

    Returns:
        The names of the columns.

    Raises:
        TableError: if no column is left. `check_chosen` raises it if chosen columns are missing.
    """
    if options.chosen is not None:
        check_chosen(names, options.chosen)
    left_out = *key.names, options.label_column, *options.drop
    columns = list(options.chosen or (name for name in names if name not in left_out))
    if not columns:
        raise TableError(
            "the table has no columns in addition to ids and labels", "add columns", code="SVFL-TABLE-EMPTY"
        )
    return columns


def open_parquet(path: Path, **options: Any) -> Any:
    """Open a Parquet file, an Arrow IPC file or a folder of such files (`securevfl.data.arrow_dataset`).

    Args:
        path: the file or folder.
        **options: options of `pyarrow.parquet.ParquetFile`, for a Parquet file.

    Returns:
        The open file.

    Raises:
        TableError: if it is not a Parquet file, or damaged.
    """
    try:
        if path.is_dir() or path.suffix in IPC_SUFFIXES:
            return DatasetFile(path)
        return arrow("parquet").ParquetFile(path, **options)
    except (arrow().ArrowException, OSError) as cause:
        if isinstance(cause, OSError) and cause.errno:
            raise
        raise TableError(
            "the file is not of the format that its name states, or damaged",
            "export it again",
            code="SVFL-TABLE-UNREADABLE",
        ) from None


def parquet_names(file: Any, id_column: str) -> list[str]:
    """Return the checked column names of a Parquet file (`check_names`), without an unnamed row index of pandas."""
    names = [clean_name(name) for name in file.schema_arrow.names if not _INDEX_COLUMN.fullmatch(name)]
    check_names(names, id_column)
    return names


def category_names(file: Any) -> set[str]:
    """Return the columns that were written as categories, which only the Arrow schema in the file's metadata shows."""
    encoded = (file.metadata.metadata or {}).get(b"ARROW:schema")
    if encoded is None:
        return set()
    pa, types = arrow(), arrow("types")
    try:
        schema = arrow("ipc").read_schema(pa.py_buffer(base64.b64decode(encoded)))
    except (pa.ArrowException, ValueError, OSError):
        return set()
    return {field.name for field in schema if types.is_dictionary(field.type)}


def stored_names(file: Any) -> dict[str, str]:
    """Map the name of each column, with single blanks as white space, to its name in the Parquet file."""
    return {clean_name(name): name for name in file.schema_arrow.names}


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
        stored = stored_names(file)
        names = [stored[column] for column in columns]
        table = file.read(columns=names, use_threads=False).select(names)
        table.validate(full=True)  # otherwise invalid UTF-8 would be refused later, in a message that contains it
        for j, name in enumerate(names):
            if name in category_names(file) and not arrow("types").is_dictionary(table.schema.types[j]):
                table = table.set_column(j, name, table.column(j).dictionary_encode())
        return table.rename_columns(list(columns))
    except arrow().ArrowException:
        raise TableError("the Parquet file is damaged", "export it again", code="SVFL-TABLE-UNREADABLE") from None


def ids_of(table: Any, key: IdColumns) -> NDArray[Any]:
    """Return the ids (n,) of an Arrow table; raise IdError if one is missing."""
    ids = arrow_ids(table, key)
    if arrow().types.is_string(ids.type):
        return np.array(ids.to_pylist(), object)  # `to_numpy` would import pandas whenever it is installed
    return ids.to_numpy()


def written_ids(table: Any, key: IdColumns) -> list[Any] | None:
    """Return the id columns' values as the table has them (n,); None unless the rule for spellings composes ids."""
    if not key.by_rule:
        return None
    columns = [table[name].to_pylist() for name in key.names]
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def arrow_ids(table: Any, key: IdColumns) -> Any:
    """Return the ids of an Arrow table as a chunked array.

    Args:
        table: the table.
        key: the columns from which its ids are composed.

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
        delimiter: the delimiter of a CSV file; its labels are texts, which become numbers if all of them are numbers.

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
    labels: NDArray[Any] = np.array(column.to_pylist(), object) if delimiter else column.to_numpy()
    if delimiter == ";" and all(map(_DECIMAL_COMMA.fullmatch, column.unique().to_pylist())):
        labels = np.array([label.replace(",", ".") for label in labels.tolist()], dtype=object)
    if delimiter and labels.dtype.kind == "O" and (numbers := _separated_numbers(column.unique().to_pylist())):
        return np.array([numbers[label] for label in labels.tolist()])
    for kind in (np.int64, np.float64) if delimiter else ():
        try:
            return labels.astype(kind)
        except (ValueError, OverflowError):
            continue
    return labels


def _separated_numbers(texts: list[str]) -> dict[str, float]:
    """Return the number that each text means, if all are percentages or numbers with clear separators; otherwise {}."""
    numbers = parse_numbers(texts)
    return {} if numbers is None else dict(zip(texts, numbers, strict=True))


def _npz_arrays(path: Path, *names: str) -> dict[str, NDArray[Any]]:
    """Return the arrays with these names that the file contains, by name."""
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


def _read_npz(path: Path, options: ReadOptions) -> FileTable:
    chosen, declared, known = options.chosen, options.declared, options.known
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
    if chosen is not None:
        check_chosen(names, chosen)
    kept = list(chosen or (name for name in names if name not in options.drop))
    if X.ndim == 2 and kept != names:
        X = X[:, [names.index(column) for column in kept]]
    y = arrays.get("y") if chosen is None else None
    if declared or not all(known[name].is_plain for name in kept if name in known):
        check_declared(declared, names)
        chosen_types = {name: kind for name, kind in declared.items() if name in (*kept, ALL_COLUMNS)}
        table = columns_of("", dict(zip(kept, X.T, strict=True)), declared=chosen_types, known=known)
        return FileTable(table, y, arrays.get("ids"))
    return FileTable(Columns(X, kept), y, arrays.get("ids"))
