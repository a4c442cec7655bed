"""Tables of the active party, each rotated to start at another entry, as look-ups of secret-shared sums need them.

A look-up sends every row's table from some index on, cyclically. If each table is stored twice, one copy after the
other, then every rotation is a window of consecutive entries, which is copied as a piece.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

TableStarts = NDArray[np.uint8]
"""For each look-up, the index of the table entry that is sent first."""


def rotated_tables(tables: NDArray[Any], table_of_row: NDArray[Any], first: TableStarts) -> NDArray[Any]:
    """Return the tables of n rows, each rotated to start at an index.

    Args:
        tables: different tables (t, 2^b).
        table_of_row: which of them a row uses (n,).
        first: the index of the entry that comes first in each row (n,), below 2^b.

    Returns:
        The tables (n, 2^b): entry [i, j] is that of row i at (first[i] + j) modulo 2^b.
    """
    # select the tables of the rows first, so that tables which no row uses are not copied
    if len(tables) > len(table_of_row):
        tables, table_of_row = tables[table_of_row], np.arange(len(table_of_row))
    twice = np.concatenate([tables, tables], axis=1)
    windows = sliding_window_view(twice, tables.shape[1], axis=1)
    return windows[table_of_row, first]
