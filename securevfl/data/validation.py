"""Checks of the columns, labels, ids and indexes that a user supplies.

A frame is recognised by its attributes: nothing of pandas, polars or SciPy is imported.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securevfl.base.arrays import Floats
from securevfl.errors import DataNotice, LabelError, TableError

_SPELLINGS_OF_NAN = ["".join(letters) for letters in product("nN", "aA", "nN")]
MISSING_TEXTS = frozenset(
    [
        *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "1.#IND", "1.#QNAN", "N/A", "NA"),
        *("NULL", "n/a", "null"),
        *(sign + spelling for sign in ("", "-", "+") for spelling in _SPELLINGS_OF_NAN),
    ]
)
"""Texts that are read as missing values in columns of every type; pyarrow uses the same set.

NaN is one of them in every spelling, because a column of numbers accepts every spelling as the number NaN. All other
marks of missing values have to be declared.
"""


def is_missing(value: Any) -> bool:
    """Return whether a value is missing: None, NaN, or the NA and NaT of pandas."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float) and value != value


def unmasked(values: Any) -> Any:
    """Replace masked values of a numpy masked array by NaN, or by None in arrays of objects; leave others unchanged."""
    if not np.ma.isMaskedArray(values):
        return values
    if values.dtype.kind == "f":
        return values.filled(np.nan)
    if values.dtype.kind == "M":
        return values.filled(np.datetime64("NaT"))
    mask = np.ma.getmaskarray(values)
    if not mask.any():
        return values.data
    if values.dtype.kind in "biu":
        return np.where(mask, np.nan, values.data.astype(np.float64))
    objects = values.data.astype(object)
    objects[mask] = None
    return objects


def check_extremes(name: str, low: Floats, high: Floats, columns: Sequence[str], rows: int) -> list[str]:
    """Find the columns that do not vary, and warn that they get no weight.

    Args:
        name: name of the party, which error messages state.
        low: minimum of each column (d,). NaN or infinity shows that the column contains such values.
        high: maximum of each column (d,), also NaN or infinite in such a column.
        columns: the names of the columns.
        rows: the number of rows.

    Returns:
        The names of the columns that do not vary; empty if there is only one row.

    Raises:
        TableError: if a column contains NaN or infinities, or if no column varies.
    """
    check_finite(name, np.isfinite(low) & np.isfinite(high), columns)
    constant = [columns[j] for j in np.flatnonzero(low == high).tolist()]
    if not constant or rows == 1:
        return []
    if len(constant) == len(columns):
        raise TableError(
            f"party {name}: no column varies; constant: {name_list(constant)}",
            code="SVFL-TABLE-CONSTANT",
            party=name,
            columns=constant,
        )
    notice = f"party {name}: columns that do not vary get no weight: {name_list(constant)}"
    warnings.warn(notice, DataNotice, stacklevel=3)
    return constant


def check_finite(name: str, finite: NDArray[np.bool_], columns: Sequence[str]) -> None:
    """Check that all columns are finite.

    Args:
        name: name of the party, which error messages state.
        finite: whether each column (d,) is finite.
        columns: the names of the columns.

    Raises:
        TableError: if a column is not finite.
    """
    bad = [columns[j] for j in np.flatnonzero(~finite).tolist()]
    if bad:
        raise TableError(
            f"party {name}: {name_list(bad)} contain infinities, or missing values in columns without missing values "
            f"in training",
            "replace these values",
            code="SVFL-TABLE-MISSING-VALUES",
            party=name,
            columns=bad,
        )


def check_labels(name: str, y: ArrayLike, rows: int) -> NDArray[Any]:
    """Check labels and convert them to an array of numbers or texts.

    Args:
        name: name of the party, which error messages state.
        y: the labels (rows,) or (rows, 1).
        rows: the number of rows of the table.

    Returns:
        The labels (rows,).

    Raises:
        TableError: if the shape is wrong.
        LabelError: if labels are missing or infinite.
    """
    labels = np.asarray(unmasked(y))
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != (rows,):
        raise TableError(
            f"party {name} has {rows} rows and labels of shape {labels.shape}",
            "pass one label for each row",
            code="SVFL-TABLE-SHAPE",
            party=name,
        )
    if labels.dtype.kind == "f":
        missing = int((~np.isfinite(labels)).sum())
    elif labels.dtype.kind in "OUS":
        missing = sum(map(_is_missing_label, labels.tolist()))
    else:
        missing = 0
    if missing:
        raise LabelError(
            f"party {name}: {missing} labels are missing or infinite",
            code="SVFL-LABEL-MISSING",
            party=name,
            missing=missing,
        )
    if labels.dtype.kind == "O":
        labels = np.asarray(labels.tolist())
        labels = labels.astype(str) if labels.dtype.kind == "O" else labels
    return labels


def _is_missing_label(value: Any) -> bool:
    """Return whether a label is missing: a text such as "NA" or "", a missing value of a frame, or an infinity."""
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, str):
        return value in MISSING_TEXTS
    return is_missing(value) or (isinstance(value, float) and not np.isfinite(value))


def index_of(table: Any) -> Any:
    """Return the index of a frame or series; None for others, such as a list, whose `index` is a method."""
    index = getattr(table, "index", None)
    return None if index is None or callable(index) else index


def names_rows(index: Any) -> bool:
    """Return whether an index of a frame contains ids: it has a name, or differs from 0 to n - 1."""
    values = np.asarray(index)
    return getattr(index, "name", None) is not None or not np.array_equal(values, np.arange(len(values)))


def name_list(names: Sequence[str], limit: int = 5) -> str:
    """Return the first `limit` names, separated by commas, and how many more there are."""
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def check_chosen(names: Collection[str], chosen: Sequence[str], prefix: str = "") -> None:
    """Check that a table has the columns that a model was trained on.

    Args:
        names: the columns of the table.
        chosen: the columns of the training.
        prefix: text at the beginning of the error message, such as the name of the party.

    Raises:
        TableError: if columns are missing.
    """
    if missing := [column for column in chosen if column not in names]:
        raise TableError(
            f"{prefix}the table lacks columns of the training: {name_list(missing, 10)}",
            "add these columns",
            code="SVFL-TABLE-COLUMNS",
            columns=missing,
        )
