"""Checks of the columns, labels, ids and indexes that a user supplies.

A frame is recognised by its attributes: nothing of pandas, polars or SciPy is imported.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securevfl.base.arrays import Floats
from securevfl.errors import DataNotice, IdError, LabelError, TableError


def lacks(value: Any) -> bool:
    """Whether it stands for a missing value: None, NaN, or what pandas has for these."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float) and value != value


MISSING = frozenset(  # texts that stand for a missing value, those that Arrow takes for one
    [
        *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "N/A", "NA"),
        *("NULL", "NaN", "n/a", "nan", "null"),
    ]
)


def check_extremes(name: str, low: Floats, high: Floats, columns: Sequence[str], rows: int) -> list[str]:
    """Find the columns that do not vary, from the least and largest (d,) value of each; a DataNotice says that they get
    no weight.

    NaN and infinities show in the extremes. TableError names columns that hold them, or if no column varies.
    """
    check_finite(name, np.isfinite(low) & np.isfinite(high), columns)
    constant = [columns[j] for j in np.flatnonzero(low == high).tolist()]
    if not constant or rows == 1:
        return []
    if len(constant) == len(columns):
        raise TableError(f"party {name}: columns that vary were expected, constant: {some(constant)}; bring others")
    notice = f"party {name}: columns that do not vary get no weight: {some(constant)}"
    warnings.warn(notice, DataNotice, stacklevel=3)
    return constant


def check_finite(name: str, finite: NDArray[np.bool_], columns: Sequence[str]) -> None:
    """Whether each column (d,) is. TableError names those that are not."""
    bad = [columns[j] for j in np.flatnonzero(~finite).tolist()]
    if bad:
        raise TableError(f"party {name}: finite numbers were expected, NaN or infinities are in {some(bad)}; fill them")


def check_labels(name: str, y: ArrayLike, rows: int) -> NDArray[Any]:
    """Labels (rows,) as an array of numbers or text. TableError, or LabelError if some are missing."""
    labels = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != (rows,):
        raise TableError(f"party {name}: one label for each of {rows} rows was expected, shape {labels.shape} came")
    if labels.dtype.kind == "f":
        missing = int((~np.isfinite(labels)).sum())
    elif labels.dtype.kind in "OUS":
        missing = sum(map(_is_missing, labels.tolist()))
    else:
        missing = 0
    if missing:
        raise LabelError(
            f"party {name}: finite labels were expected, {missing} are missing, NaN or infinite; drop those rows"
        )
    if labels.dtype.kind == "O":
        labels = np.asarray(labels.tolist())
        labels = labels.astype(str) if labels.dtype.kind == "O" else labels
    return labels


def _is_missing(value: Any) -> bool:
    """Whether it stands for no value: as CSV writes it, None, and the NaN, NaT and NA of Python and of frames."""
    if isinstance(value, str):
        return value in MISSING
    return lacks(value) or (isinstance(value, float) and not np.isfinite(value))


def index_ids(name: str, X: Any, y: Any) -> NDArray[Any] | None:
    """Return the ids that the index of a frame gives: those of an index with a name, or with values other than 0 to n -
    1; None for any other.

    IdError if labels come with another index than the columns.
    """
    index = _index(X)
    if index is None:
        return None
    values = np.asarray(index)
    of_labels = _index(y)
    if of_labels is not None and not np.array_equal(np.asarray(of_labels), values):
        raise IdError(f"party {name}: labels in the rows of the columns were expected, their indexes differ; join them")
    named = getattr(index, "name", None) is not None
    return values if named or not np.array_equal(values, np.arange(len(values))) else None


def _index(table: Any) -> Any:
    """Return the index of a frame or of one column of it; None for a list, whose `index` is a method."""
    index = getattr(table, "index", None)
    return None if index is None or callable(index) else index


def some(names: Sequence[str], most: int = 5) -> str:
    """List the first names, five unless told otherwise, and say how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def check_chosen(names: Collection[str], chosen: Sequence[str], who: str = "") -> None:
    """Columns that a model was trained on, among those of a table. TableError names the missing."""
    if lacking := [column for column in chosen if column not in names]:
        raise TableError(f"{who}columns of the training were expected, missing: {some(lacking, 10)}; add them")
