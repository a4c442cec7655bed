"""Tables from files: CSV (also .csv.gz), Parquet and npz, whole to a `Party`, or their ids alone.

A CSV or Parquet file has one row a sample, a column of ids, at one party a column of labels, and otherwise columns of
numbers. An npz file has arrays X (n x d), ids (n,), at one party y (n,), and optionally columns (d names).
Ids of CSV files are text as they stand there, so that "007" stays what it is.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.scheme import Floats
from securevfl.data.columns import Columns, Levels, text_column
from securevfl.data.csv_table import CsvColumns, NotNumbers, read_columns, read_names, with_points
from securevfl.data.party import Party
from securevfl.errors import DataError, IdError, LabelError, TableError
from securevfl.extras import extra

SUFFIXES = (".csv", ".csv.gz", ".parquet", ".npz")
_ROW_NAMES = re.compile(r"__index_level_\d+__")  # pandas' unnamed row index in Parquet


@dataclass(frozen=True)
class Table:
    """What a file holds, not yet checked: X (n x d) as `securevfl.data.columns` has it, names of its columns, labels
    and ids where there are any, and the levels of columns of texts."""

    X: Floats
    columns: list[str]
    y: NDArray[Any] | None
    ids: NDArray[Any] | None
    levels: Levels = field(default_factory=dict)

    @property
    def held(self) -> Columns:
        """Its columns."""
        return Columns(self.X, self.columns, self.levels)


def read_party(name: str, path: str | Path, *, id_column: str = "id", label_column: str = "y") -> Party:
    """A party from a file; it is the active one if the file has the label column (npz: an array y).

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
) -> Table:
    """What a file holds, as it comes and not checked further; with `chosen` these columns alone, in this order.

    texts: columns that hold texts, though they may look like numbers in a CSV file.
    DataError as `read_party`, and TableError that names chosen columns which are not there.
    """
    path = Path(path)
    with named(path):
        match _format(path):
            case "csv":
                return _read_csv(path, id_column, label_column, chosen, texts)
            case "parquet":
                return _read_parquet(path, id_column, label_column, chosen)
        table = _read_npz(path)
        if chosen is None:
            return table
        check_chosen(table.columns, chosen)
        at = [table.columns.index(column) for column in chosen]
        return Table(table.X[:, at], list(chosen), None, table.ids)


def read_ids(path: str | Path, *, id_column: str = "id") -> NDArray[Any]:
    """The ids of a file (n,), and nothing else of it. DataError as `read_party`, IdError if there are none."""
    path = Path(path)
    with named(path):
        match _format(path):
            case "csv":
                _csv_names(path, id_column)
                ids = _csv_ids(read_columns(path, texts=[id_column], numbers=[]).texts[id_column], id_column)
            case "parquet":
                ids = ids_of(_parquet_columns(path, id_column, [])[id_column], id_column)
            case _:
                arrays = _npz_arrays(path, "ids")
                if not arrays:
                    raise IdError("ids were expected, none came; add an array ids")
                ids = arrays["ids"]
        if not len(ids):
            raise TableError("rows were expected below the header, none came; export the table again")
        return ids


def _format(path: Path) -> str:
    for suffix in SUFFIXES:
        if path.name.endswith(suffix):
            return suffix.split(".")[1]
    raise TableError(f"a file that ends in {', '.join(SUFFIXES)} was expected; rename or convert it")


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Errors in reading a file name it."""
    try:
        yield
    except DataError as error:
        raise type(error)(f"{path}: {error}") from None
    except OSError as cause:
        reason = os.strerror(cause.errno) if cause.errno else "it is damaged"
        raise TableError(f"{path}: a readable table was expected there ({reason}); check the path") from None


def _read_csv(
    path: Path, id_column: str, label_column: str, chosen: Sequence[str] | None, words: Sequence[str]
) -> Table:
    names = _csv_names(path, id_column)
    if chosen is not None:
        check_chosen(names, chosen)
    labelled = chosen is None and label_column in names
    numbers = list(chosen or (name for name in names if name not in (id_column, label_column)))
    if not numbers:
        raise TableError("at least one column beside ids and labels was expected, none came; add columns")
    X, levels, held = _csv_mixed(path, [id_column, *([label_column] if labelled else [])], numbers, words)
    if not len(X):
        raise TableError("rows were expected below the header, none came; export the table again")
    empty = np.flatnonzero(np.isnan(X).all(axis=0))
    if len(empty) and chosen is None:
        raise TableError(f"columns with values were expected, column {numbers[empty[0]]} is empty; drop it")
    y = _csv_labels(held, label_column) if labelled else None
    return Table(X, numbers, y, _csv_ids(held.texts[id_column], id_column), levels)


def _csv_mixed(
    path: Path, texts: Sequence[str], columns: Sequence[str], words: Sequence[str]
) -> tuple[Floats, dict[str, tuple[str, ...]], CsvColumns]:
    """The columns (n x d), their levels, and what holds `texts`; `words` and what is found to be no numbers are texts
    too."""
    while True:
        numbers = [column for column in columns if column not in words]
        try:
            held = read_columns(path, texts=[*texts, *words], numbers=numbers)
        except NotNumbers as found:
            words = [*words, *found.columns]
            continue
        if not words:
            return held.X, {}, held
        places = {word: text_column("", word, held.texts[word].tolist()) for word in words}
        own = dict(zip(numbers, held.X.T, strict=True)) | {word: values for word, (values, _) in places.items()}
        levels = {word: found for word, (_, found) in places.items() if found}
        return np.column_stack([own[column] for column in columns]), levels, held


def _csv_names(path: Path, id_column: str) -> list[str]:
    """The names of all columns of a CSV file, checked."""
    names = read_names(path)
    if not names:
        raise TableError("a header and rows were expected, the file is empty; export it again")
    check_names(names, id_column)
    return names


def _csv_ids(ids: NDArray[Any], id_column: str) -> NDArray[Any]:
    check_ids(sum(value is None for value in ids), id_column)
    return ids


def _csv_labels(held: CsvColumns, label_column: str) -> NDArray[Any]:
    """Numbers where text reads as such."""
    labels = held.texts[label_column]
    check_labelled(sum(value is None for value in labels), label_column)
    pointed = with_points(labels.tolist()) if held.decimal_comma else None
    for kind in (np.int64, np.float64):
        try:
            return (labels if pointed is None else np.array(pointed, dtype=object)).astype(kind)
        except (ValueError, OverflowError):
            continue
    return labels


def check_names(names: list[str], id_column: str) -> None:
    """The names of all columns of a file. TableError, or IdError without an id column."""
    if id_column not in names:
        if len(names) == 1 and "|" in names[0]:
            raise TableError(
                "values parted by commas, semicolons or tabs were expected, the first line has |; export it so"
            )
        if any(_is_number(name) for name in names):
            raise TableError("a header with column names was expected, the first line holds numbers; add a header")
        shown = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
        raise IdError(f"an id column {id_column!r} was expected, columns are {shown}; name the right one with --id")
    if not all(names):
        raise TableError(
            f"a name for every column was expected, column {names.index('') + 1} has none; name or drop it"
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise TableError(f"columns of different names were expected, twice: {', '.join(twice[:5])}; rename one of each")


def check_chosen(names: Sequence[str], chosen: Sequence[str]) -> None:
    """Columns that a model was trained on, among those of a file. TableError names the missing."""
    lacking = [column for column in chosen if column not in set(names)]
    if lacking:
        shown = ", ".join(lacking[:10]) + (f" and {len(lacking) - 10} more" if len(lacking) > 10 else "")
        raise TableError(f"columns of the training were expected, missing: {shown}; add them")


def is_row_index(name: str) -> bool:
    """Whether a column of a Parquet file is none of the table's."""
    return _ROW_NAMES.fullmatch(name) is not None


def check_kind(name: str, kind: Any) -> None:
    """The Arrow type of a column that is to hold numbers. TableError."""
    types = arrow("types")
    numbers = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)
    if not any(fits(kind) for fits in numbers):
        raise TableError(f"numbers were expected, column {name} holds {kind}; encode it as numbers or drop it")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _parquet_columns(path: Path, id_column: str, chosen: Sequence[str] | None) -> Any:
    """All columns of a Parquet file as an Arrow table; with `chosen` ids and these alone."""
    pa, parquet = arrow(), arrow("parquet")
    try:
        file = parquet.ParquetFile(path)
        names = [name for name in file.schema_arrow.names if not is_row_index(name)]
        check_names(names, id_column)
        if chosen is not None:
            check_chosen(names, chosen)
            names = [id_column, *chosen]
        return file.read(columns=names).select(names)
    except pa.ArrowException:
        raise TableError("a Parquet file was expected; it is none, or it is damaged") from None


def _read_parquet(path: Path, id_column: str, label_column: str, chosen: Sequence[str] | None) -> Table:
    table = _parquet_columns(path, id_column, chosen)
    names = [name for name in table.schema.names if name not in (id_column, label_column)]
    if not names:
        raise TableError("at least one column beside ids and labels was expected, none came; add columns")
    if not table.num_rows:
        raise TableError("rows were expected below the header, none came; export the table again")
    X, levels = np.empty((table.num_rows, len(names))), {}
    for j, name in enumerate(names):
        column = table[name]
        if chosen is None and column.null_count == len(column):
            raise TableError(f"columns with values were expected, column {name} is empty; drop it")
        if _holds_texts(column.type):
            X[:, j], levels[name] = text_column("", name, column.to_pylist())
            continue
        check_kind(name, column.type)
        X[:, j] = column.cast(arrow().float64(), safe=False).to_numpy()
    return Table(X, names, labels_of(table, label_column), ids_of(table[id_column], id_column), levels)


def _holds_texts(kind: Any) -> bool:
    """Whether a column of this Arrow type holds texts, each value in full or by its place in a dictionary."""
    types = arrow("types")
    own = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(own) or types.is_large_string(own) or types.is_string_view(own))


def arrow(part: str = "") -> Any:
    """The module pyarrow, or a part of it. ConfigError if it is not installed."""
    return extra("pyarrow" + (f".{part}" if part else ""), "parquet", "a Parquet file")


def ids_of(column: Any, id_column: str) -> NDArray[Any]:
    """Ids of an Arrow column. IdError if one is missing."""
    check_ids(column.null_count, id_column)
    ids: NDArray[Any] = column.to_numpy()
    return ids


def labels_of(table: Any, label_column: str) -> NDArray[Any] | None:
    """Labels of an Arrow table that has any. LabelError if one is missing."""
    if label_column not in table.schema.names:
        return None
    check_labelled(table[label_column].null_count, label_column)
    labels: NDArray[Any] = table[label_column].to_numpy()
    return labels


def check_ids(missing: int, id_column: str) -> None:
    """IdError if rows have no id."""
    if missing:
        raise IdError(f"an id in every row was expected, {missing} rows have none in {id_column}; fill them")


def check_labelled(missing: int, label_column: str) -> None:
    """LabelError if rows have no label."""
    if missing:
        raise LabelError(
            f"a label in every row was expected, {missing} rows have none in {label_column}; drop those rows"
        )


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


def _read_npz(path: Path) -> Table:
    held = _npz_arrays(path, "X", "y", "ids", "columns")
    if "X" not in held:
        raise TableError("an array X (n x d) was expected in the npz file, there is none; save it under that name")
    X = held["X"]
    if X.dtype.kind not in "biuf":
        raise TableError("numbers were expected in X, it holds text; encode them as numbers")
    columns = held.get("columns")
    names = [f"x{j}" for j in range(X.shape[-1] if X.ndim else 0)] if columns is None else [str(c) for c in columns]
    return Table(X, names, held.get("y"), held.get("ids"))
