"""Values of Arrow columns as NumPy arrays, without pandas.

`to_numpy` of Arrow imports pandas if it is installed, and so does every conversion of Python values to Arrow. The
import takes 0.2 to 0.3 s, and a command that reads a CSV file does not need it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats


def float_values(column: Any) -> Floats:
    """Return a numeric Arrow array or chunked array as floats (n,), with NaN for missing values.

    The result may be read-only and share its memory with the column.
    """
    return _values(column.cast("float64", safe=False), np.dtype(np.float64), np.nan)


def integer_values(column: Any, missing: int = -1) -> NDArray[np.int64]:
    """Return an Arrow array or chunked array of integers as an array (n,), with `missing` for missing values."""
    return _values(column.cast("int64"), np.dtype(np.int64), missing)


def flag_values(column: Any) -> NDArray[np.bool_]:
    """Return an Arrow array or chunked array of truth values without missing values as an array (n,)."""
    return _values(column.cast("uint8"), np.dtype(np.uint8), 0).astype(bool)


def _values(column: Any, kind: np.dtype[Any], missing: float) -> NDArray[Any]:
    """Return the values (n,) of an Arrow array or chunked array whose type is that of `kind`."""
    chunks = [_chunk_values(chunk, kind, missing) for chunk in getattr(column, "chunks", [column])]
    return chunks[0] if len(chunks) == 1 else np.concatenate([np.empty(0, kind), *chunks])


def _chunk_values(array: Any, kind: np.dtype[Any], missing: float) -> NDArray[Any]:
    """Return the values (n,) of one Arrow array."""
    if not len(array):
        return np.empty(0, kind)
    values: NDArray[Any] = np.frombuffer(array.buffers()[1], kind, len(array), kind.itemsize * array.offset)
    return np.where(flag_values(array.is_valid()), values, kind.type(missing)) if array.null_count else values
