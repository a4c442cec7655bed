"""CSV files, plain or gzipped, as columns: text for ids and labels, numbers for the rest.

Values are parted by what parts the names in the first line: commas, semicolons or tabs. In a file of semicolons a
comma within a number is the decimal point; elsewhere such a number is named as what it is.

Read with numpy and the standard library, in pieces, so that a party which brings CSV needs nothing else. As long as
every line is plain, numpy reads the numbers; from the first line on that is not (a number is missing, a value goes on
in the next line) the slower `csv` reads the rest. Both give the same. Texts that stand for a missing value are those
that Arrow takes for one.
"""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.errors import TableError

CHUNK = 1 << 14  # rows in memory as text at a time
MISSING = frozenset(
    [
        *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "N/A", "NA"),
        *("NULL", "NaN", "n/a", "nan", "null"),
    ]
)
SEPARATORS = ",", ";", "\t"
_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d*,?\d+([eE][+-]?\d+)?\s*")
_QUOTED = re.compile(r'"((?:[^"]|"")*)"')


class NotNumbers(TableError):
    """Columns that were read as numbers and hold something else."""

    def __init__(self, columns: list[str]) -> None:
        super().__init__(f"numbers were expected, columns {', '.join(columns)} hold texts; encode or drop them")
        self.columns = columns


@dataclass(frozen=True)
class CsvColumns:
    """X (n x d) numbers, nan where a value is missing; `texts` by column name (n,), None where one is missing.

    decimal_comma: whether a comma within a number is its decimal point.
    """

    X: Floats
    texts: dict[str, NDArray[Any]]
    decimal_comma: bool


def read_names(path: Path) -> list[str]:
    """Read the column names in the first line, none of an empty file. TableError if it is no CSV."""
    with _opened(path) as file:
        return _head(file)[0]


def _head(file: TextIO) -> tuple[list[str], str]:
    """Read the column names in the first line and what separates them: of , ; and tab the one that gives the most."""
    first = file.readline()
    while first.count('"') % 2 and (more := file.readline()):  # a name that goes on in the next line
        first += more
    found = {separator: next(csv.reader([first], delimiter=separator), []) for separator in SEPARATORS}
    separator = max(SEPARATORS, key=lambda each: len(found[each]))
    return found[separator], separator


def with_points(values: Sequence[str | None]) -> list[str | None] | None:
    """Numbers with a decimal comma, written with a point; None if a value is something else."""
    if all(value is None or value in MISSING or _DECIMAL_COMMA.fullmatch(value) for value in values):
        return [None if value is None else value.replace(",", ".") for value in values]
    return None


def read_columns(path: Path, *, texts: Sequence[str], numbers: Sequence[str]) -> CsvColumns:
    """Read these columns of a file, each of them there, in this order.

    TableError names the line or the columns (NotNumbers) that cannot be read, and never a value.
    """
    blocks = [np.empty((0, len(numbers)))]
    found: dict[str, list[str | None]] = {name: [] for name in texts}

    def keep(X: Floats, columns: list[list[str]]) -> None:
        blocks.append(X)
        for name, values in zip(texts, columns, strict=True):
            found[name] += [None if value in MISSING else value for value in values]

    with _opened(path) as file:
        names, separator = _head(file)
        words, figures = ([names.index(name) for name in wanted] for wanted in (texts, numbers))
        while piece := list(islice(file, CHUNK)):
            lines = [line for line in piece if line.strip("\r\n")]
            if not lines:
                continue
            plain = _plain(lines, separator, len(names), words, figures)
            if plain is not None:
                keep(*plain)
                continue
            rows = filter(None, csv.reader(chain(lines, file), delimiter=separator))
            while chunk := list(islice(rows, CHUNK)):
                if any(len(row) != len(names) for row in chunk):
                    raise TableError(_ragged(path, len(names), separator))
                columns = [_numbers(names[at], [row[at] for row in chunk], separator) for at in figures]
                if wrong := [names[at] for at, own in zip(figures, columns, strict=True) if own is None]:
                    raise NotNumbers(wrong)
                read = [own for own in columns if own is not None]
                X = np.column_stack(read) if read else np.empty((len(chunk), 0))
                keep(X, [[row[at] for row in chunk] for at in words])
    return CsvColumns(
        np.concatenate(blocks), {name: np.array(own, dtype=object) for name, own in found.items()}, separator == ";"
    )


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    opened: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
            yield file
    except (UnicodeDecodeError, csv.Error):
        raise TableError("a CSV file with a header, in UTF-8, was expected; export it so") from None
    except (EOFError, zlib.error):
        raise TableError("a whole gzipped CSV file was expected, it is damaged; export it again") from None


def _plain(
    lines: list[str], separator: str, columns: int, words: list[int], figures: list[int]
) -> tuple[Floats, list[list[str]]] | None:
    """Read the numbers (lines x d) and the texts of lines that hold one row each; None if not all of them do."""
    if any(line.count(separator) != columns - 1 or line.count('"') % 2 for line in lines):
        return None
    texts = []
    for at in words:
        values = [line.rstrip("\r\n").split(separator, at + 1)[at] for line in lines]
        for row, value in enumerate(values):
            if '"' in value:
                inner = _QUOTED.fullmatch(value)
                if inner is None:
                    return None
                values[row] = inner[1].replace('""', '"')
        texts.append(values)
    if not figures:
        return np.empty((len(lines), 0)), texts
    try:
        X = np.loadtxt(lines, delimiter=separator, comments=None, quotechar='"', usecols=figures, ndmin=2)
    except ValueError:
        return None
    return X, texts


def _numbers(name: str, values: list[str], separator: str) -> Floats | None:
    """Values as numbers, NaN for a missing one; None if one of them is no number. TableError for decimal commas."""
    if "," in "".join(values) and (pointed := with_points(values)) is not None:
        if separator != ";":
            raise TableError(
                f"numbers with a decimal point were expected, column {name} has commas within numbers; export it with "
                "points, or with semicolons between values"
            )
        values = [each or "" for each in pointed]
    if "_" in "".join(values):  # which Python reads within a number
        return None
    try:
        return np.array([np.nan if value in MISSING else float(value) for value in values])
    except ValueError:
        return None


def _ragged(path: Path, expected: int, separator: str) -> str:
    """Which line has another number of values than there are columns."""
    with _opened(path) as file:
        rows = csv.reader(file, delimiter=separator)
        for row in rows:
            if row and len(row) != expected:
                where = f"in line {rows.line_num}"
                return f"{expected} values a line were expected, {len(row)} came {where}; correct the file"
    return "a CSV file that stays as it is was expected; read it again"
