"""The choice of the class that reads a table's file in pieces: one for CSV, one for Parquet and Arrow IPC."""

from __future__ import annotations

from pathlib import Path

from securevfl.data.arrow_dataset import is_arrow
from securevfl.data.csv_source import CsvSource
from securevfl.data.parquet_source import ParquetSource
from securevfl.data.table_source import TableSource


def source_type(path: Path) -> type[TableSource]:
    """Return the class that reads this file: `ParquetSource` for files with Arrow types, otherwise `CsvSource`."""
    return ParquetSource if is_arrow(path) else CsvSource
