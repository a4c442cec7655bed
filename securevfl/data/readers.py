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

from securevfl.base.arrays import Floats
from securevfl.base.extras import extra
from securevfl.data.columns import Columns, Levels, Read, days_of, text_column
from securevfl.data.csv_table import CsvColumns, NotNumbers, read_columns, read_names, with_points
from securevfl.data.party import Party
from securevfl.errors import DataError, IdError, LabelError, TableError

SUFFIXES = (".csv", ".csv.gz", ".parquet", ".npz")
_ROW_NAMES = re.compile(r"__index_level_\d+__")  # pandas' unnamed row index in Parquet


@dataclass(frozen=True)
class ReadTable:
    """What a file holds, not yet checked: X (n x d) as `securevfl.data.columns` has it, names of its columns, labels
    and ids where there are any, the levels of columns of texts, and which columns hold dates or percentages."""

    X: Floats
    columns: list[str]
    y: NDArray[Any] | None
    ids: NDArray[Any] | None
    levels: Levels = field(default_factory=dict)
    dates: frozenset[str] = frozenset()
    percents: frozenset[str] = frozenset()

    @property
    def held(self) -> Columns:
        """The columns of this file, without its ids and labels."""
        return Columns(self.X, self.columns, self.levels, self.dates, self.percents)


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
) -> ReadTable:
    """Read what a file holds, as it stands and not checked further; with `chosen` these columns alone, in this order.

    texts: columns that hold texts, though they may look like numbers in a CSV file.
    DataError as `read_party`, and TableError that names chosen columns which are not there.
    """
    path = Path(path)
    with named(path):
        match _format(path):
            case "csv":
                return _read_csv(path, id_column, label_column, chosen, texts)
            case "parquet":
                return _read_parquet(path, id_column, label_column, chosen, texts)
        table = _read_npz(path)
        if chosen is None:
            return table
        check_chosen(table.columns, chosen)
        at = [table.columns.index(column) for column in chosen]
        return ReadTable(table.X[:, at], list(chosen), None, table.ids)


def read_ids(path: str | Path, *, id_column: str = "id") -> NDArray[Any]:
    """Read the ids of a file (n,), and nothing else of it. Raises DataError as `read_party` does, IdError if there are
    none."""
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
) -> ReadTable:
    names = _csv_names(path, id_column)
    if chosen is not None:
        check_chosen(names, chosen)
    labelled = chosen is None and label_column in names
    numbers = list(chosen or (name for name in names if name not in (id_column, label_column)))
    if not numbers:
        raise TableError("at least one column beside ids and labels was expected, none came; add columns")
    own, held = _csv_mixed(path, [id_column, *([label_column] if labelled else [])], numbers, words)
    X = own.X
    if not len(X):
        raise TableError("rows were expected below the header, none came; export the table again")
    empty = np.flatnonzero(np.isnan(X).all(axis=0))
    if len(empty) and chosen is None:
        raise TableError(f"columns with values were expected, column {numbers[empty[0]]} is empty; drop it")
    y = _csv_labels(held, label_column) if labelled else None
    return ReadTable(X, numbers, y, _csv_ids(held.texts[id_column], id_column), own.levels, own.dates, own.percents)


def _csv_mixed(
    path: Path, texts: Sequence[str], columns: Sequence[str], words: Sequence[str]
) -> tuple[Columns, CsvColumns]:
    """Read the columns of a CSV file that holds `texts`. `words` are taken as texts whatever they look like; other
    columns that do not read as numbers are looked at once more, as they may hold numbers or dates as people write
    them."""
    found: list[str] = []
    while True:
        numbers = [column for column in columns if column not in {*words, *found}]
        try:
            held = read_columns(path, texts=[*texts, *words, *found], numbers=numbers)
        except NotNumbers as slips:
            found += slips.columns
            continue
        own = {column: Read(values) for column, values in zip(numbers, held.X.T, strict=True)}
        own |= {word: text_column("", word, held.texts[word].tolist(), forced=True) for word in words}
        own |= {word: text_column("", word, held.texts[word].tolist()) for word in found}
        X = held.X if not (words or found) else np.column_stack([own[column].values for column in columns])
        levels = {column: each.levels for column, each in own.items() if each.levels}
        dates = frozenset(column for column, each in own.items() if each.dates)
        percents = frozenset(column for column, each in own.items() if each.percents)
        return Columns(X, list(columns), levels, dates, percents), held


def _csv_names(path: Path, id_column: str) -> list[str]:
    """Read the names of all columns of a CSV file, and check them. Raises TableError if the file is empty, and as
    `check_names` does."""
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
    """Check the names of all columns of a file. Raises TableError if they do not look like a header, IdError if the id
    column is not among them."""
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
    """Check that the Arrow type of a column can hold numbers. Raises TableError otherwise."""
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


def _read_parquet(
    path: Path, id_column: str, label_column: str, chosen: Sequence[str] | None, texts: Sequence[str]
) -> ReadTable:
    table = _parquet_columns(path, id_column, chosen)
    names = [name for name in table.schema.names if name not in (id_column, label_column)]
    if not names:
        raise TableError("at least one column beside ids and labels was expected, none came; add columns")
    if not table.num_rows:
        raise TableError("rows were expected below the header, none came; export the table again")
    X = np.empty((table.num_rows, len(names)))
    levels: dict[str, tuple[str, ...]] = {}
    dates: set[str] = set()
    percents: set[str] = set()
    for j, name in enumerate(names):
        column = table[name]
        if chosen is None and column.null_count == len(column):
            raise TableError(f"columns with values were expected, column {name} is empty; drop it")
        if _holds_texts(column.type):
            read = text_column("", name, column.to_pylist(), forced=name in texts)
            X[:, j] = read.values
            levels |= {name: read.levels} if read.levels else {}
            dates |= {name} if read.dates else set()
            percents |= {name} if read.percents else set()
            continue
        if _holds_dates(column.type):
            moments = column.cast(arrow().timestamp("us")).to_numpy()
            X[:, j] = days_of(moments)
            dates.add(name)
            continue
        check_kind(name, column.type)
        X[:, j] = column.cast(arrow().float64(), safe=False).to_numpy()
    y, ids = labels_of(table, label_column), ids_of(table[id_column], id_column)
    return ReadTable(X, names, y, ids, levels, frozenset(dates), frozenset(percents))


def _holds_dates(kind: Any) -> bool:
    """Whether a column of this Arrow type holds dates, with times or without."""
    types = arrow("types")
    return bool(types.is_date(kind) or types.is_timestamp(kind))


def _holds_texts(kind: Any) -> bool:
    """Whether a column of this Arrow type holds texts, each value in full or by its place in a dictionary."""
    types = arrow("types")
    own = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(own) or types.is_large_string(own) or types.is_string_view(own))


def arrow(part: str = "") -> Any:
    """Import the module pyarrow, or a part of it. Raises ConfigError if it is not installed."""
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


def _read_npz(path: Path) -> ReadTable:
    held = _npz_arrays(path, "X", "y", "ids", "columns")
    if "X" not in held:
        raise TableError("an array X (n x d) was expected in the npz file, there is none; save it under that name")
    X = held["X"]
    if X.dtype.kind not in "biuf":
        raise TableError("numbers were expected in X, it holds text; encode them as numbers")
    columns = held.get("columns")
    names = [f"x{j}" for j in range(X.shape[-1] if X.ndim else 0)] if columns is None else [str(c) for c in columns]
    return ReadTable(X, names, held.get("y"), held.get("ids"))
