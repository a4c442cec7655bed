"""Files that store the row order that an alignment found, next to the data file."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from securevfl.base.checked_files import read_checked, write_checked
from securevfl.data.store import validate_row_numbers
from securevfl.errors import DataError


def rows_path(data: str | Path) -> Path:
    """Return the path of a data file's row order: a file beside it."""
    return Path(f"{data}.rows.npy")


def write_rows(data: str | Path, rows: NDArray[np.intp]) -> Path:
    """Write row numbers with a digest beside the data file that they are about, whole or not at all; returns their
    path."""
    buffer = io.BytesIO()
    np.save(buffer, rows.astype("<i8"), allow_pickle=False)
    write_checked(rows_path(data), buffer.getvalue())
    return rows_path(data)


def read_rows(data: str | Path, *, of: int) -> NDArray[np.intp]:
    """Read the row order that `write_rows` wrote, for a table of `of` rows. Raises DataError or TableError if it does
    not fit."""
    path = rows_path(data)
    try:
        rows = np.load(io.BytesIO(read_checked(path)), allow_pickle=False)
    except OSError as cause:
        raise DataError(f"{path}: a row order was expected there ({cause.strerror}); align first") from None
    except (ValueError, EOFError):
        raise DataError(
            f"{path}: row numbers as an alignment writes them were expected, the file is damaged or another's; align "
            "again"
        ) from None
    return validate_row_numbers(path, rows, of)
