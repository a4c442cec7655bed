"""Opening the file of a table that is read in pieces, by the kind of the file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from securevfl.data.column_types import Types
from securevfl.data.csv_source import CsvSource
from securevfl.data.parquet_source import ParquetSource
from securevfl.data.table_source import TableSource


def open_source(
    name: str,
    path: Path,
    *,
    id_column: str,
    label_column: str = "",
    chosen: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    declared: Types | None = None,
) -> TableSource:
    """Open a CSV or Parquet file; see `TableSource` for the arguments. Columns are chosen in Parquet files only."""
    if path.suffix != ".parquet" and chosen is None:
        return CsvSource(name, path, id_column=id_column, label_column=label_column, drop=drop, declared=declared)
    return ParquetSource(
        name, path, id_column=id_column, label_column=label_column, chosen=chosen, drop=drop, declared=declared
    )
