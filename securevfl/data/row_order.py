"""Files that store which rows of a data file a private alignment selected, and in which order.

They are written next to the data file, so that a later training reads the rows in the order that all parties share.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from securevfl.base.checked_files import read_checked, write_checked
from securevfl.data.store import validate_row_numbers
from securevfl.errors import DataError


def rows_path(data: str | Path) -> Path:
    """Return the path at which the row order of a data file is stored."""
    return Path(f"{data}.rows.npy")


def write_rows(data: str | Path, rows: NDArray[np.intp]) -> Path:
    """Write row numbers of a data file, with a digest, atomically, and return the path of the file."""
    buffer = io.BytesIO()
    np.save(buffer, rows.astype("<i8"), allow_pickle=False)
    write_checked(rows_path(data), buffer.getvalue())
    return rows_path(data)


def read_rows(data: str | Path, *, of: int) -> NDArray[np.intp]:
    """Read the row order that `write_rows` wrote.

    Args:
        data: the data file.
        of: the number of rows of the data file.

    Returns:
        The row numbers.

    Raises:
        DataError: if there is no row order, or it is damaged or does not fit the data file.
    """
    path = rows_path(data)
    try:
        rows = np.load(io.BytesIO(read_checked(path)), allow_pickle=False)
    except OSError as cause:
        raise DataError(
            f"{path}: there is no row order of an alignment ({cause.strerror})",
            "run securevfl align first",
            code="SVFL-FILE-UNUSABLE",
            file=str(path),
        ) from None
    except (ValueError, EOFError):
        raise DataError(
            f"{path}: the row order is damaged", "run securevfl align again", code="SVFL-FILE-DAMAGED", file=str(path)
        ) from None
    return validate_row_numbers(path, rows, of)
