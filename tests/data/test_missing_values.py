"""Missing values and missing labels are recognised in every form in which numpy can hold them."""

from __future__ import annotations

import warnings
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from securevfl.data.column_transforms import part_of_date
from securevfl.data.validation import MISSING_TEXTS, check_extremes, check_labels, is_missing, unmasked
from securevfl.errors import DataNotice, LabelError, TableError
from tests.builders import raises_code

VALUES: dict[str, np.ndarray] = {
    "bool": np.array([True, False, True]),
    "int8": np.array([1, 2, 3], np.int8),
    "uint64": np.array([1, 2, 3], np.uint64),
    "float32": np.array([1, 2, 3], np.float32),
    "float64": np.array([1.0, 2.0, 3.0]),
    "date": np.array(["2024-01-01", "2024-01-02", "2024-01-03"], "datetime64[D]"),
    "text": np.array(["a", "b", "c"]),
    "object": np.array(["a", 2, None], object),
}


@pytest.mark.parametrize("masked", [[], [0], [1, 2], [0, 1, 2]], ids=str)
@pytest.mark.parametrize("kind", VALUES)
def test_masked_values_of_every_type_are_missing(kind: str, masked: list[int]) -> None:
    """Values that are not masked are the same as before."""
    values = VALUES[kind]
    mask = np.isin(np.arange(3), masked)
    plain = unmasked(np.ma.array(values, mask=mask))
    assert not np.ma.isMaskedArray(plain)
    assert plain.dtype.kind in ({"date": "M", "text": "UO", "object": "O"}.get(kind, "f" if masked else "biuf"))
    for row in range(3):
        if mask[row]:
            assert np.isnat(plain[row]) if kind == "date" else is_missing(plain.tolist()[row])
        else:
            assert plain[row] == values[row]


NAN = float("nan")


@pytest.mark.parametrize(
    "labels",
    [
        np.array([1.0, NAN, 0.0]),
        np.array([1.0, np.inf, 0.0]),
        np.array([1.0, -np.inf, 0.0], np.float32),
        np.ma.array([1, 1, 0], mask=[False, True, False]),
        np.array([b"yes", b"", b"no"]),
        *(np.array(["yes", text, "no"]) for text in ("", "NA", "null", "NaN")),
        *(np.array(["yes", wrong, 3], object) for wrong in (None, NAN, np.inf, -np.inf, "", "NA", b"", b"NA")),
    ],
    ids=repr,
)
def test_a_missing_label_of_every_type_is_refused(labels: Any) -> None:
    with raises_code(LabelError, "SVFL-LABEL-MISSING", missing=1):
        check_labels("bank", labels, 3)


def test_every_text_for_a_missing_value_is_no_label() -> None:
    for text in MISSING_TEXTS:
        with raises_code(LabelError, "SVFL-LABEL-MISSING", missing=2):
            check_labels("bank", np.array(["yes", text, text]), 3)
    assert check_labels("bank", np.array([b"yes", b"no"]), 2).tolist() == [b"yes", b"no"]


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_a_constant_column_is_noticed_from_two_rows_on(rows: int) -> None:
    """Every column of a table of one row is constant, which is no reason for a notice."""
    low, high = np.array([1.0, 2.0]), np.array([1.0, 2.0 + (rows > 1)])
    with warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always", DataNotice)
        constant = check_extremes("bank", low, high, ["a", "b"], rows)
    assert (constant, len(notices)) == ((["a"], 1) if rows > 1 else ([], 0))
    if rows > 1:
        with raises_code(TableError, "SVFL-TABLE-CONSTANT"):
            check_extremes("bank", low, low, ["a", "b"], rows)


def test_parts_of_dates_are_those_of_the_calendar() -> None:
    """For days with and without a time, before and after 1970, at the ends of months and in leap years."""
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    days = np.concatenate([np.arange(-800.0, 800.0), [-25567.0, 11015.0, 11016.0, 20000.0]])
    for time in (0.0, 0.25, 1 - 1e-6):
        dates = [epoch + timedelta(days=float(day) + time) for day in days]
        assert part_of_date("weekday", days + time).tolist() == [date.weekday() for date in dates]
        assert part_of_date("month", days + time).tolist() == [date.month for date in dates]
    assert np.isnan([part_of_date(part, np.array([np.nan])) for part in ("month", "weekday")]).all()
