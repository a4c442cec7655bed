"""Matching of rows by id: of several parties' tables in one process, or of labels with a table.

Ids are passed by the caller, or are an index of a frame or series that has a name or differs from 0 to n - 1. Rows of
tables with ids are reordered until the ids agree; different ids are an error. Tables without ids, such as arrays, are
assumed to be in the same order, which cannot be checked; a notice names them if other tables have ids.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securevfl.data.id_keys import id_digest
from securevfl.data.validation import index_of, name_list, names_rows, unmasked
from securevfl.errors import DataNotice, IdError, TableError

RowOrder = NDArray[np.intp] | None
"""Positions (n,) of the rows to use, in order; None for all rows in their present order."""


def ids_of_rows(table: Any, ids: ArrayLike | Sequence[Any] | None = None) -> NDArray[Any] | None:
    """Return the ids (n,) of a table's rows: the argument `ids`, else the table's index, else None."""
    if ids is not None:
        return _one_dimensional(ids)
    return _index_ids(table) if index_of(table) is not None and hasattr(table, "columns") else None


def match_tables(ids: Mapping[str, NDArray[Any] | None], lead: str) -> dict[str, RowOrder]:
    """Match the rows of several tables.

    Args:
        ids: the ids of the rows of each party's table, or None.
        lead: the party whose order the rows get, if its table has ids; otherwise the first one with ids.

    Returns:
        The row order of each party.

    Raises:
        IdError: if two tables have different ids.
    """
    orders: dict[str, RowOrder] = dict.fromkeys(ids)
    with_ids = {name: row_ids for name, row_ids in ids.items() if row_ids is not None}
    if not with_ids:
        return orders
    first = lead if lead in with_ids else next(iter(with_ids))
    for name, row_ids in with_ids.items():
        orders[name] = _order(f"party {name}", row_ids, f"party {first}", with_ids[first])
    if without := [name for name in ids if name not in with_ids]:
        notice = f"the rows of {name_list(without)} have no ids and are matched with those of {first} by position"
        warnings.warn(notice, DataNotice, stacklevel=4)
    return orders


def match_values(what: str, values: Any, ids: NDArray[Any] | None, order: RowOrder = None) -> NDArray[Any]:
    """Match values of rows, such as labels, with the rows of a table.

    Args:
        what: a name of the values for messages, such as "the labels".
        values: a value for each row; a series may have an index of ids.
        ids: the ids of the table's rows in their final order, or None.
        order: the final order of the table's rows, as positions in the original table; values without ids get the
            same order.

    Returns:
        The values in the order of the rows.

    Raises:
        IdError: if the ids of the values and of the table differ.
    """
    value_ids = _index_ids(values)
    if value_ids is not None and ids is not None:
        if len(value_ids) == len(ids) and np.array_equal(value_ids, ids):
            return take_rows(values, None)
        return take_rows(values, _order(what, value_ids, "the table", ids))
    if value_ids is not None:
        warnings.warn(
            f"{what} have an index and the table has no ids, so they are matched by position", DataNotice, stacklevel=4
        )
    return take_rows(values, order)


def take_rows(values: Any, order: RowOrder) -> NDArray[Any]:
    """Return the values as an array, values[order], or unchanged if `order` is None."""
    array = np.asarray(unmasked(values))
    return array if order is None or len(array) != len(order) else array[order]


def _order(what: str, row_ids: NDArray[Any], other: str, ids: NDArray[Any]) -> RowOrder:
    """Return for each of `ids` (n,) its position in `row_ids`; None if both have the same order."""
    if row_ids is ids or (len(row_ids) == len(ids) and np.array_equal(row_ids, ids)):
        return None
    digests, wanted = (
        [id_digest(who.removeprefix("party "), value) for value in values]
        for who, values in ((what, row_ids), (other, ids))
    )
    if digests == wanted:
        return None
    row_of = {digest: row for row, digest in enumerate(digests)}
    lacking = sum(digest not in row_of for digest in set(wanted))
    surplus = len(set(digests) - set(wanted))
    if lacking or surplus:
        raise IdError(
            f"{what} lack {lacking:,} of the {len(set(wanted)):,} ids of {other}, and have {surplus:,} others",
            "pass the rows of the same ids everywhere",
            code="SVFL-ID-NO-MATCH",
            lacking=lacking,
            surplus=surplus,
        )
    if len(row_of) < len(digests) or len(digests) != len(wanted):
        raise IdError(
            f"{what} and {other} repeat ids in different orders, so their rows cannot be matched",
            "leave only one row for each id, or pass the rows in one order",
            code="SVFL-ID-DUPLICATE",
        )
    return np.array([row_of[digest] for digest in wanted], dtype=np.intp)


def _index_ids(table: Any) -> NDArray[Any] | None:
    index = index_of(table)
    return np.asarray(index) if index is not None and names_rows(index) else None


def _one_dimensional(ids: ArrayLike | Sequence[Any]) -> NDArray[Any]:
    array = np.asarray(unmasked(ids))
    if array.ndim != 1:
        raise TableError(f"the ids have shape {array.shape}", "pass one id for each row", code="SVFL-TABLE-SHAPE")
    return array
