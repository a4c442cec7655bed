"""Tests of rotated tables: each row's table from a given entry on."""

from __future__ import annotations

import numpy as np
import pytest

from securevfl.protocols.shares.rotated_tables import rotated_tables


@pytest.mark.parametrize("bits", [1, 6, 8])
@pytest.mark.parametrize("count", [1, 7, 40])
def test_each_row_gets_its_table_from_its_index_on(bits: int, count: int) -> None:
    """This also holds if there are more tables than rows, so that most are unused."""
    draw, entries, rows = np.random.default_rng(0), 1 << bits, 20
    tables = draw.integers(0, 2**31, (count, entries)).astype(np.uint32)
    table_of_row, first = draw.integers(0, count, rows), draw.integers(0, entries, rows).astype(np.uint8)
    rotated = rotated_tables(tables, table_of_row, first)
    assert rotated.shape == (rows, entries)
    assert rotated.dtype == tables.dtype
    for row in range(rows):
        np.testing.assert_array_equal(rotated[row], np.roll(tables[table_of_row[row]], -int(first[row])))
