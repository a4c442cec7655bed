"""Values of Arrow columns are those of `to_numpy`, and a CSV file is read without pandas."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from securevfl.data.arrow_values import flag_values, float_values, integer_values

COLUMNS = {
    "whole": pa.array([3, None, -1, 0, 7], pa.int32()),
    "plain": pa.array([3.5, 2.0, -0.0, np.inf, 1e300]),
    "missing": pa.array([None, 1.5, None, np.nan, 2.0]),
    "all missing": pa.array([None, None, None, None, None], pa.float64()),
    "narrow": pa.array([1.5, None, 2.5, 0.1, 3.0], pa.float32()),
    "long": pa.array([*range(130), None, *range(130)], pa.int64()),
    "true or false": pa.array([True, None, False, True, True]),
    "texts of numbers": pa.array(["1", "2.5", None, "-3e5", "0"]),
}


def _pieces(column: pa.Array) -> list[pa.Array | pa.ChunkedArray]:
    """Return the column, its slices, also the empty ones, and chunked arrays of its parts."""
    n = len(column)
    slices = [column.slice(i, j - i) for i in range(min(n, 9) + 1) for j in (i, n // 2, n) if j >= i]
    chunked = [pa.chunked_array([column.slice(0, k), column.slice(k)]) for k in (0, 1, n // 2, n)]
    return [*slices, *chunked, pa.chunked_array([], column.type)]


@pytest.mark.parametrize("name", COLUMNS)
def test_floats_are_those_of_arrow(name: str) -> None:
    for piece in _pieces(COLUMNS[name]):
        expected = np.array([np.nan if x is None else float(x) for x in piece.to_pylist()], np.float64)
        values = float_values(piece)
        assert values.dtype == np.float64
        np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("name", ["whole", "long"])
@pytest.mark.parametrize("missing", [-1, 12])
def test_integers_are_those_of_arrow(name: str, missing: int) -> None:
    for piece in _pieces(COLUMNS[name]):
        values = integer_values(piece, missing)
        assert values.dtype == np.int64
        assert values.tolist() == [missing if x is None else x for x in piece.to_pylist()]


def test_flags_are_those_of_arrow() -> None:
    for column in COLUMNS.values():
        for piece in _pieces(column):
            values = flag_values(piece.is_valid())
            assert values.dtype == bool
            assert values.tolist() == [x is not None for x in piece.to_pylist()]


READ = """
import sys
from securevfl.data.readers import read_party
party = read_party("bank", sys.argv[1])
assert party.X.shape == (4, 3), party.X.shape
assert "pandas" not in sys.modules
"""


@pytest.mark.parametrize("labels", [[0, 1, 1, 0], ["yes", "no", "no", "yes"]], ids=["numbers", "texts"])
def test_a_csv_file_is_read_without_pandas(tmp_path: Path, labels: list[object]) -> None:
    path = tmp_path / "bank.csv"
    rows = zip(
        ["a", "b", "c", "d"], ["1.5", "", "2", "3"], ["red", "blue", "", "red"], [4, 5, 6, 7], labels, strict=True
    )
    path.write_text("\n".join(["id,u,colour,v,y", *(",".join(map(str, row)) for row in rows)]) + "\n")
    pytest.importorskip("pandas")
    subprocess.run([sys.executable, "-c", READ, str(path)], check=True, timeout=120)
