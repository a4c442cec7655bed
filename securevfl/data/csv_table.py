"""The columns of a CSV file as numbers, read batch by batch, so that few texts are in memory at a time.

A first pass reads every column as numbers, and ids and labels as texts. A second pass reads the columns that contain
other values: it numbers their distinct texts (a text's number is its *code*). Then the type of such a column is decided
from its texts, and each code is replaced by the number that this type assigns to the text.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.data.arrow_values import float_values, integer_values
from securevfl.data.column_types import ColumnType, Types, declared_type
from securevfl.data.columns import Columns, combined, typed_columns
from securevfl.data.csv_file import CsvFile
from securevfl.data.raw_columns import ColumnValues, NumberColumn, Place, TextColumn, convert_column
from securevfl.errors import TableError

_LEADING_ZERO = r"^\s*[+-]?0\d+\s*$"


def read_csv_columns(
    file: CsvFile, columns: Sequence[str], others: Sequence[str], *, declared: Types, known: Types, where: str
) -> tuple[Columns, Any]:
    """Read columns of a CSV file.

    Args:
        file: the file.
        columns: the columns to read as numbers.
        others: columns to read as texts, such as ids and labels.
        declared: the declared types of columns.
        known: the types of the columns in the training of a model.
        where: the path of the file, which notices state.

    Returns:
        The columns, and the others as an Arrow table.

    Raises:
        TableError: if a column is empty or does not fit its type; several problems are one error.
    """
    kinds = {name: known.get(name) or declared_type(declared, name) for name in columns}
    as_text = {name for name, kind in kinds.items() if not may_be_numbers(kind)}
    X = np.empty((file.max_rows, len(columns)))
    codes: dict[str, dict[str, int]] = {name: {} for name in as_text}
    batches, failed, rows = list[Any](), set[str](), 0
    for batch in file.batches([*others, *columns]):
        end = rows + batch.num_rows
        for j, name in enumerate(columns):
            if name in as_text:
                X[rows:end, j] = encode_texts(batch.column(name), codes[name])
            elif name not in failed and not read_numbers(batch.column(name), X[rows:end, j]):
                failed.add(name)
        batches.append(batch.select(list(others)))
        rows = end
    X = X[:rows]
    if failed:
        _read_texts(file, columns, failed, codes, X)
    pa = import_module("pyarrow")
    table = pa.Table.from_batches(batches, pa.schema([(name, pa.string()) for name in others]))
    return _convert(file, columns, codes, X, declared, known, where), table


def may_be_numbers(kind: ColumnType) -> bool:
    """Return whether a column of this type may contain plain numbers (also true if its kind is undecided)."""
    return kind.type in (None, "number") and not kind.decimal and not kind.format


def read_numbers(column: Any, values: Floats) -> bool:
    """Parse one batch of a column into the array `values` (k,).

    Return False if a value is not a number or has leading zeros, so that the column must be read as texts.
    """
    pa = import_module("pyarrow")
    try:
        values[:] = float_values(column.cast(pa.float64()))
    except pa.ArrowInvalid:
        return False
    with np.errstate(invalid="ignore"):
        has_integers = bool((values == np.floor(values)).any())
    if not has_integers:
        return True
    compute = import_module("pyarrow.compute")
    return not compute.any(compute.match_substring_regex(column, _LEADING_ZERO)).as_py()


def encode_texts(column: Any, codes: dict[str, int]) -> Floats:
    """Return the code (k,) of each text of a batch, NaN if missing. A new text gets the next free code."""
    encoded = column.dictionary_encode()
    numbers = [codes.setdefault(text, len(codes)) for text in encoded.dictionary.to_pylist()]
    indices = integer_values(encoded.indices, len(numbers))
    return np.array([*numbers, np.nan], np.float64)[indices]


def _read_texts(
    file: CsvFile, columns: Sequence[str], failed: Collection[str], codes: dict[str, dict[str, int]], X: Floats
) -> None:
    """Read the columns that are not numbers a second time, as texts, and write their codes to X (n, d)."""
    names, start = [name for name in columns if name in failed], 0
    codes |= {name: {} for name in names}
    for batch in file.batches(names):
        for name in names:
            X[start : start + batch.num_rows, columns.index(name)] = encode_texts(batch.column(name), codes[name])
        start += batch.num_rows


def _convert(
    file: CsvFile,
    columns: Sequence[str],
    codes: dict[str, dict[str, int]],
    X: Floats,
    declared: Types,
    known: Types,
    where: str,
) -> Columns:
    """Decide the type of each column of X (n, d), and convert codes of texts to numbers of that type."""
    converted, problems = list[ColumnValues](), list[TableError]()
    for j, name in enumerate(columns):
        values, place, declaration = X[:, j], Place(None, name), declared_type(declared, name)
        try:
            if name in codes:
                positions = np.where(np.isnan(values), -1, values).astype(np.intp)
                raw = TextColumn(list(codes[name]), positions, "csv", file.delimiter)
                result = convert_column(place, raw, declaration, known.get(name))
                values[:] = result.values
            else:
                result = convert_column(place, NumberColumn(values), declaration, known.get(name))
                if result.values is not values:
                    values[:] = result.values
                if result.type.origin == "file":
                    result = result._replace(type=result.type.model_copy(update={"origin": "values"}))
        except TableError as error:
            problems.append(error)
            continue
        converted.append(result._replace(values=values[:0]))
    if problems:
        raise combined(problems, where)
    return typed_columns(X, list(columns), converted, where)
