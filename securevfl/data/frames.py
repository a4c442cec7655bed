"""Tables that users pass in Python as named columns (*frames*): DataFrames, dicts of columns and Arrow streams.

narwhals reads frames of pandas, polars (lazy ones too), pyarrow and DuckDB. pyarrow reads record batches, mappings of
columns, and other tables that have the Arrow PyCapsule interface. A library is imported only when one of its tables is
passed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from securevfl.data.column_names import clean_name
from securevfl.data.raw_columns import Place, RawColumn, raw_of_array, raw_of_arrow
from securevfl.data.validation import unmasked
from securevfl.errors import TableError

_ARROW_METHODS = "__arrow_c_stream__", "__arrow_c_array__"  # of the Arrow PyCapsule interface


def is_frame(table: Any) -> bool:
    """Return True if a table has named columns, unlike an array."""
    if isinstance(table, Mapping) or _is_batches(table):
        return True
    kind = type(table)
    return any(hasattr(kind, name) for name in ("columns", "column_names", *_ARROW_METHODS)) or hasattr(
        table, "columns"
    )


def named_columns(name: str, table: Any) -> dict[str, Any]:
    """Return the columns of a frame by their names, as objects of the frame's library.

    Args:
        name: name of the party, which error messages state.
        table: the frame.

    Returns:
        The columns by name. White space in a name is replaced by single blanks.

    Raises:
        TableError: if the table cannot be read, or columns have the same name or different lengths.
    """
    table = _in_memory(name, table)
    if isinstance(table, Mapping):
        pairs = [(key, table[key]) for key in table]
    else:
        keys = list(getattr(table, "column_names", None) or table.columns)
        names = [clean_name(key) for key in keys]
        repeated = sorted({column for column in names if names.count(column) > 1})
        if repeated:
            raise _repeated(name, repeated)
        pairs = [(key, table[key]) for key in keys]
    columns = {clean_name(key): column for key, column in pairs}
    if len(columns) < len(pairs):
        raise _repeated(name, sorted({clean_name(key) for key, _ in pairs}))
    lengths = {len(column) for column in columns.values()}
    if len(lengths) > 1:
        raise TableError(
            f"party {name}: the columns have different lengths: {', '.join(map(str, sorted(lengths)))}",
            "pass columns of one length",
            code="SVFL-TABLE-SHAPE",
            party=name,
        )
    return columns


def raw_column(name: str, column: str, values: Any) -> RawColumn:
    """Return one column of a frame as a raw column.

    Args:
        name: name of the party, which error messages state.
        column: the name of the column.
        values: the column.

    Returns:
        The column in one of the three forms of `securevfl.data.raw_columns`: numbers, dates or texts.
    """
    place = Place(name, column)
    pa = import_module("pyarrow")
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return raw_of_arrow(place, values)
    if isinstance(values, np.ndarray):
        return raw_of_array(place, np.asarray(unmasked(values)))
    if isinstance(values, Sequence):
        return raw_of_array(place, _objects(values))
    narwhals = import_module("narwhals")
    series = narwhals.from_native(values, series_only=True, pass_through=True)
    if not isinstance(series, narwhals.Series):
        if hasattr(values, "__arrow_c_stream__"):
            return raw_of_arrow(place, pa.chunked_array(values))
        return raw_of_array(place, np.asarray(unmasked(values)))
    if series.dtype.is_numeric() or series.dtype == narwhals.Boolean:
        try:
            return raw_of_arrow(place, series.to_arrow())
        except pa.ArrowException:
            return raw_of_array(place, np.asarray(values))
    # Python objects of mixed types are not passed to pyarrow, whose error messages would show their values
    if series.dtype == narwhals.Object:
        return raw_of_array(place, _objects(series.to_list()))
    try:
        return raw_of_arrow(place, series.to_arrow())
    except (pa.ArrowException, TypeError, ValueError, NotImplementedError):
        return raw_of_array(place, _objects(series.to_list()))


def _objects(values: Sequence[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    """Return values (n,) as an array of numbers if all of them are numbers, otherwise as an array of objects."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _in_memory(name: str, table: Any) -> Any:
    """Return a table in memory whose columns can be selected by name. Lazy frames and streams are read for this."""
    if isinstance(table, Mapping):
        return table
    pa = import_module("pyarrow")
    try:
        if isinstance(table, pa.RecordBatch):
            return pa.Table.from_batches([table])
        if _is_batches(table):
            return pa.Table.from_batches(table)
        if isinstance(table, pa.Table):
            return table
        narwhals = import_module("narwhals")
        frame = narwhals.from_native(table, pass_through=True)
        if isinstance(frame, narwhals.LazyFrame):
            return frame.collect("pyarrow").to_native()
        if not isinstance(frame, narwhals.DataFrame) and hasattr(table, "__arrow_c_stream__"):
            return pa.table(table)
        if not isinstance(frame, narwhals.DataFrame) and hasattr(table, "__arrow_c_array__"):
            return pa.Table.from_batches([pa.record_batch(table)])
    except pa.ArrowException:
        raise TableError(
            f"party {name}: the table cannot be read",
            "pass it as a frame of pandas, polars or pyarrow",
            code="SVFL-TABLE-UNREADABLE",
            party=name,
        ) from None
    return table


def _is_batches(table: Any) -> bool:
    """Return whether a table is a list of Arrow record batches."""
    return isinstance(table, list | tuple) and bool(table) and type(table[0]).__name__ == "RecordBatch"


def _repeated(name: str, columns: list[str]) -> TableError:
    return TableError(
        f"party {name}: several columns have the name {', '.join(columns[:5])}",
        "rename columns so that all names differ",
        code="SVFL-TABLE-HEADER",
        party=name,
        columns=columns,
    )
