"""A CSV file, which may be compressed, as batches of texts.

The delimiter is the one among comma, semicolon and tab that gives the most names in the header. A header may have names
with line breaks in quotation marks, and blank lines above it; white space in names becomes single blanks. Values may
contain line breaks in quotation marks. A quotation mark that encloses complete rows, because it was meant as inches or
was never closed, is an error that names its line: otherwise these rows would disappear. Errors never contain a value.
Lines are numbered from 1, rows from 1 below the header.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from securevfl.data.column_names import clean_name
from securevfl.data.composite_ids import id_pattern
from securevfl.data.validation import MISSING_TEXTS
from securevfl.errors import TableError

CSV_BLOCK_BYTES = 4 << 20
"""Number of bytes of a CSV file that are parsed at a time. A longer row is refused."""
_DELIMITERS = ",", ";", "\t"
_LINE_BREAK = re.compile(r"\r\n|\r|\n")
_BLANK_LINES = re.compile(r"\A(\s*[\r\n])+")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_EXPORT = 'open it in the spreadsheet and export it as "CSV UTF-8"'
_OTHER_FORMATS = {
    b"PK\x03\x04": ("an Excel workbook or a zip archive", f"extract the archive, or {_EXPORT}"),
    b"\xd0\xcf\x11\xe0": ("an old Excel workbook", _EXPORT),
    b"PAR1": ("Parquet", "rename it so that its name ends in .parquet"),
    b"ARROW1": ("Arrow IPC", "rename it so that its name ends in .arrow"),
    b"%PDF": ("PDF", "export the table as CSV"),
    b"\x1f\x8b": ("compressed with gzip", "rename it so that its name ends in .csv.gz"),
    b"\x28\xb5\x2f\xfd": ("compressed with Zstandard", "rename it so that its name ends in .csv.zst"),
}
"""The first bytes of files of other formats, which users rename to .csv: what they are, and a remedy."""


class CsvFile:
    """An open CSV file.

    Args:
        path: the file.

    Attributes:
        names: the names of its columns, as `clean_name` returns them.
        delimiter: the delimiter of its values.
        max_rows: an upper bound of the number of rows.

    Raises:
        TableError: if the file has no header, is not in UTF-8, or has quotation marks that enclose complete rows.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._header_lines = 0
        _check_format(path)
        self._has_quotes, breaks = _scan(path)
        self.max_rows = breaks + 1
        with _lines(path) as file:
            header = self._read_header(file)
        with import_module("pyarrow").input_stream(str(path)) as file:
            mark = file.read(len(_BYTE_ORDER_MARK)) == _BYTE_ORDER_MARK
        self._header_bytes = len(header.encode()) + len(_BYTE_ORDER_MARK) * mark
        header = _BLANK_LINES.sub("", header)
        rows = {mark: next(csv.reader(io.StringIO(header, newline=""), delimiter=mark), []) for mark in _DELIMITERS}
        self.delimiter = max(_DELIMITERS, key=lambda mark: len(rows[mark]))
        self.names = list(map(clean_name, rows[self.delimiter]))
        self._checked = not self._has_quotes

    def _read_header(self, file: TextIO) -> str:
        """Read the blank lines above the header, and the header."""
        header = line = file.readline()
        self._header_lines = 1
        while line and not line.strip():
            header += (line := file.readline())
            self._header_lines += 1
        if not line:
            raise TableError("the file is empty", "export the table again", code="SVFL-TABLE-EMPTY")
        quotes = line.count('"')
        # an odd number of quotation marks means that a quoted name contains a line break
        while quotes % 2 and (line := file.readline()):
            header += line
            self._header_lines += 1
            quotes += line.count('"')
        return header

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield all rows of these columns as Arrow record batches of texts, null for missing ones.

        Args:
            columns: the names of the columns.

        Yields:
            Record batches of rows, each of about CSV_BLOCK_BYTES bytes.

        Raises:
            TableError: if a line cannot be read.
        """
        pa, reader = import_module("pyarrow"), import_module("pyarrow.csv")
        if not self._checked:
            self._check_quotes()
            self._checked = True
        surplus = list[int]()

        def skip(row: Any) -> str:
            surplus.append(row.actual_columns)
            return "skip"

        try:
            with pa.input_stream(str(self._path)) as file:
                file.read(self._header_bytes)
                batches = reader.open_csv(
                    file,
                    reader.ReadOptions(use_threads=False, block_size=CSV_BLOCK_BYTES, column_names=self.names),
                    reader.ParseOptions(delimiter=self.delimiter, newlines_in_values=True, invalid_row_handler=skip),
                    reader.ConvertOptions(
                        column_types=dict.fromkeys(self.names, pa.string()),
                        include_columns=list(dict.fromkeys(columns)),
                        null_values=sorted(MISSING_TEXTS),
                        strings_can_be_null=True,
                    ),
                )
                for batch in batches:
                    if surplus:
                        raise self._ragged(surplus[0])
                    yield batch
        except pa.ArrowInvalid as error:
            if "Empty CSV" in str(error):  # this error only means that there is no row below the header
                return
            raise self._unreadable() from None
        if surplus:
            raise self._ragged(surplus[0])

    def table(self, columns: Sequence[str]) -> Any:
        """Return all rows of these columns as an Arrow table of texts."""
        pa = import_module("pyarrow")
        schema = pa.schema([(name, pa.string()) for name in dict.fromkeys(columns)])
        return pa.Table.from_batches(self.batches(columns), schema)

    def _check_quotes(self) -> None:
        """Raise TableError if a quotation mark encloses complete rows, or is never closed."""
        with _lines(self._path) as file:
            if not any(line.count('"') % 2 for line in file):
                return  # no value has a line break
        with _rows(self._path, self.delimiter, strict=True) as rows:
            start = first = 1
            try:
                for row in rows:
                    if rows.line_num > start and start > self._header_lines and self._encloses_rows(row):
                        raise _stray_quote(start, rows.line_num)
                    first, start = start, rows.line_num + 1
            except csv.Error:
                raise _stray_quote(max(start, first), rows.line_num) from None

    def _encloses_rows(self, row: list[str]) -> bool:
        """Return whether a value of a row contains the end of this row and the beginning of another one."""
        pattern = id_pattern(row[0])
        for column, value in enumerate(row):
            _, *inner = _LINE_BREAK.split(value)
            if not inner:
                continue
            similar = [id_pattern(line.partition(self.delimiter)[0]) == pattern for line in inner]
            marks = [line.count(self.delimiter) for line in inner]
            begins = [bool(line.partition(self.delimiter)[0].strip()) for line in inner]  # a row begins with an id
            if any(
                count >= len(self.names) - 1 > 0 and begin and (alike or len(self.names) > 2)
                for count, begin, alike in zip(marks[:-1], begins[:-1], similar[:-1], strict=True)
            ):
                return True
            if column and marks[-1] == column and similar[-1]:
                return True
        return False

    def _ragged(self, received: int) -> TableError:
        """Return the error that names the first line whose number of values differs from the number of columns.

        `received` is the number of values of that line, as pyarrow reports it.
        """
        expected = len(self.names)
        with _rows(self._path, self.delimiter) as rows:
            line = next((rows.line_num for row in rows if row and len(row) != expected), None)
        where = "a line" if line is None else f"line {line}"
        return TableError(
            f"{where} has {received} values, and the header has {expected} names", code="SVFL-TABLE-RAGGED", line=line
        )

    def _unreadable(self) -> TableError:
        """Return the error for a file that pyarrow cannot parse: it is not in UTF-8, or has a very long row."""
        try:
            with _lines(self._path) as file:
                for _ in file:
                    pass
        except TableError as error:
            return error
        return TableError(
            f"a row is longer than {CSV_BLOCK_BYTES:,} bytes, or a quotation mark is not closed",
            "shorten the row, or close the quotation mark",
            code="SVFL-TABLE-UNREADABLE",
        )


def _check_format(path: Path) -> None:
    """Raise TableError if a file that is named as CSV begins as a file of another format does."""
    with import_module("pyarrow").input_stream(str(path)) as file:
        start = file.read(max(map(len, _OTHER_FORMATS)))
    for mark, (name, remedy) in _OTHER_FORMATS.items():
        if start.startswith(mark):
            raise TableError(f"the file is {name}, not CSV", remedy, code="SVFL-TABLE-UNREADABLE")


def _scan(path: Path) -> tuple[bool, int]:
    """Return whether a file contains a quotation mark, and how many line breaks it contains."""
    has_quotes, breaks = False, 0
    with import_module("pyarrow").input_stream(str(path)) as file:
        while block := file.read(1 << 20):
            has_quotes = has_quotes or b'"' in block
            breaks += block.count(b"\n") or block.count(b"\r")
    return has_quotes, breaks


def _stray_quote(line: int, last: int) -> TableError:
    where = f"up to line {last}" if last > line else "in the same line"
    return TableError(
        f"a quotation mark in line {line} encloses complete rows {where}, or text follows a closing quotation mark",
        "remove the quotation mark, or write it twice within a quoted value",
        code="SVFL-TABLE-QUOTES",
        line=line,
    )


@contextmanager
def _lines(path: Path) -> Iterator[TextIO]:
    """Open a CSV file, which may be compressed, as lines of text; raise TableError if it is not in UTF-8."""
    try:
        with import_module("pyarrow").input_stream(str(path)) as file:
            yield io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    except UnicodeDecodeError:
        raise TableError(
            f"{_undecodable(path)} is not UTF-8",
            'export the file in UTF-8; spreadsheets call it "CSV UTF-8"',
            code="SVFL-TABLE-ENCODING",
        ) from None


def _undecodable(path: Path) -> str:
    """Return a phrase such as "line 12" for the first line of the file that is not UTF-8."""
    with import_module("pyarrow").input_stream(str(path)) as file:
        for number, line in enumerate(io.BufferedReader(file), 1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return f"line {number}"
    return "the file"


@contextmanager
def _rows(path: Path, delimiter: str, *, strict: bool = False) -> Iterator[Any]:
    """Yield the rows of a CSV file from Python's csv reader, which, unlike pyarrow, knows the line numbers."""
    limit = csv.field_size_limit(CSV_BLOCK_BYTES)
    try:
        with _lines(path) as file:
            yield csv.reader(file, delimiter=delimiter, strict=strict)
    finally:
        csv.field_size_limit(limit)
