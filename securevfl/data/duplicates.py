"""Tables with several rows of one id: they are refused, or only the first or last row of each id is used.

Row numbers remain those of the table before rows are left out, in messages and in the row order that an alignment
writes. A notice states how many rows were left out.
"""

from __future__ import annotations

import warnings
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from securevfl.data.id_keys import Keys, check_unique, order_by_value, repeated_ids, values_of
from securevfl.errors import ConfigError, DataNotice, IdError

Duplicates = Literal["refuse", "first", "last"]
"""What happens to several rows of one id: an error, or only the first or the last of them is used."""


def check_duplicates(value: Any, option: str = "duplicates") -> Duplicates:
    """Return the value of the option `duplicates`. Raises ConfigError for an unknown value."""
    if value not in get_args(Duplicates):
        raise ConfigError(
            f'{option} must be "refuse", "first" or "last"',
            f'write for example {option} = "last"',
            code="SVFL-JOB-OPTION",
            option=option,
        )
    answer: Duplicates = value
    return answer


class UniqueRows(NamedTuple):
    """The rows of a table that are used after all but one row of each id were left out.

    Attributes:
        rows: their row numbers (m,), increasing.
        total: the number of rows of the table.
    """

    rows: NDArray[np.intp]
    total: int

    def positions_of(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the positions (k,) of rows of the table among the remaining rows.

        Args:
            rows: row numbers (k,) of the table, such as those of an alignment.

        Returns:
            The positions.

        Raises:
            IdError: if a row was left out.
        """
        position = np.full(self.total, -1, dtype=np.intp)
        position[self.rows] = np.arange(len(self.rows))
        positions = position[rows]
        if (left_out := int((positions < 0).sum())) > 0:
            raise IdError(
                f"the row order of the alignment has {left_out:,} rows that are left out because their ids have "
                "other rows",
                "align again with the same duplicates option",
                code="SVFL-ID-DUPLICATE",
                duplicates=left_out,
            )
        return positions


def unique_rows(where: str, keys: Keys, duplicates: Duplicates) -> UniqueRows | None:
    """Select one row of each id.

    Args:
        where: name of the party or path of the file, which error messages state.
        keys: the digests of the ids of all rows (n, ID_DIGEST).
        duplicates: what happens to several rows of one id.

    Returns:
        The rows that remain; None if every id has one row.

    Raises:
        IdError: if an id has several rows and this is refused.
    """
    if duplicates == "refuse":
        check_unique(where, keys)
        return None
    count, _ = repeated_ids(keys)
    if not count:
        return None
    order = order_by_value(keys)  # rows with equal ids stay in the order of the table
    values = values_of(keys)[order]
    differs = values[1:] != values[:-1]
    is_end = np.append(True, differs) if duplicates == "first" else np.append(differs, True)
    remaining = np.sort(order[is_end])
    notice = (
        f"{where}: {count:,} ids have several rows. Only the {duplicates} row of each id is used; "
        f"{len(keys) - len(remaining):,} of {len(keys):,} rows are left out"
    )
    warnings.warn(notice, DataNotice, stacklevel=3)
    return UniqueRows(remaining, len(keys))
