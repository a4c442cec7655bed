"""Digests of ids: ID_DIGEST = 16 bytes for each row, equal for equal ids of any type (1 and "1").

Digests (*keys*) replace ids wherever rows are matched or sorted, so that tables of any length fit into memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.identifiers import canonical_id
from securevfl.errors import IdError

ID_DIGEST = 16
"""Number of bytes of a digest."""

_IDS_PER_BLOCK = 1 << 16

Keys = NDArray[np.uint8]
"""Digests of ids (n, ID_DIGEST)."""


def id_digest(name: str, value: Any) -> bytes:
    """Return the digest of an id of party `name`; equal ids have equal digests.

    Args:
        name: name of the party, which error messages state.
        value: the id.

    Returns:
        ID_DIGEST bytes.

    Raises:
        IdError: if the value cannot be an id.
    """
    try:
        return hashlib.blake2b(canonical_id(value), digest_size=ID_DIGEST).digest()
    except IdError as error:
        raise IdError(
            f"party {name}: {error.problem}", error.remedy, code=error.code, **{**error.fields, "party": name}
        ) from None


def id_keys(name: str, pieces: Iterable[Iterable[Any]]) -> Keys:
    """Compute the digests of the ids of all rows, which must differ.

    Args:
        name: name of the party, which error messages state.
        pieces: the ids of consecutive rows, in several pieces.

    Returns:
        The digests (n, ID_DIGEST).

    Raises:
        IdError: if a value cannot be an id, or an id occurs twice.
    """
    keys = id_digests(name, pieces)
    check_unique(f"party {name}", keys)
    return keys


def id_digests(name: str, pieces: Iterable[Iterable[Any]]) -> Keys:
    """Compute the digests (n, ID_DIGEST) of ids, some of which may be equal; raise IdError if a value is no id."""
    digests = bytearray()
    for piece in pieces:
        values = iter(piece)
        # a block at a time, because a digest as an object takes four times its bytes
        while block := b"".join(id_digest(name, value) for value in islice(values, _IDS_PER_BLOCK)):
            digests += block
    return np.frombuffer(digests, np.uint8).reshape(-1, ID_DIGEST)


def check_unique(where: str, keys: Keys) -> None:
    """Check that each id has one row.

    Args:
        where: name of the party or path of the file, which error messages state.
        keys: the digests of the ids of all rows (n, ID_DIGEST).

    Raises:
        IdError: if an id has several rows.
    """
    count, rows = repeated_ids(keys)
    if count:
        first, second = (row + 1 for row in rows)
        raise IdError(
            f"{where} has {count} ids that occur more than once, the first in rows {first} and {second} of the table",
            'to use one row of each id, set duplicates = "first" or "last" (--duplicates last), or merge the rows '
            "(docs/modelling.md describes both)",
            code="SVFL-ID-DUPLICATE",
            party=where.removeprefix("party "),
            duplicates=count,
            rows=(first, second),
        )


def order_by_value(keys: Keys) -> NDArray[np.intp]:
    """Return the row numbers (n,) sorted by digest, so that the order of ids does not depend on the order of rows."""
    high, low = _halves(keys)
    return stable_order(high, low)


def stable_order(numbers: NDArray[np.uint64], then: NDArray[np.uint64] | None = None) -> NDArray[np.intp]:
    """Return the indices (n,) that sort the numbers; equal numbers stay in their order.

    For distinct random numbers this takes half the time of numpy's stable sort. Equal ones are rare: two of 10,000,000
    random 64-bit numbers are equal with probability 1 / 400,000.

    Args:
        numbers: the numbers (n,) by which to sort.
        then: a second number for each element (n,), by which elements with equal `numbers` are sorted; None leaves them
            in their order.

    Returns:
        The indices (n,).
    """
    order = np.argsort(numbers)
    ordered = numbers[order]
    if (ordered[1:] == ordered[:-1]).any():
        order = np.argsort(numbers, kind="stable") if then is None else np.lexsort((then, numbers))
    return order


def repeated_ids(keys: Keys) -> tuple[int, list[int]]:
    """Return the number of digests that occur more than once, and the first two rows of one of them."""
    high, low = _halves(keys)
    order = order_by_value(keys)
    high, low = high[order], low[order]
    equal = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
    count = int(equal[:1].sum() + (equal[1:] & ~equal[:-1]).sum())
    if not count:
        return 0, []
    pairs = np.sort(np.column_stack([order[:-1][equal], order[1:][equal]]), axis=1)
    return count, [int(row) for row in pairs[pairs[:, 1].argmin()]]


def _halves(keys: Keys) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    high, low = np.ascontiguousarray(keys).view(">u8").astype(np.uint64).T
    return np.ascontiguousarray(high), np.ascontiguousarray(low)


def order_digest(keys: Keys) -> bytes:
    """Return a digest (32 bytes) of the ids of all rows in their order, which parties compare."""
    return hashlib.sha256(np.ascontiguousarray(keys).data).digest()


def shared_rows(
    keys: Mapping[str, Keys], lead: str
) -> tuple[dict[str, NDArray[np.intp]], dict[str, list[tuple[str, int]]]]:
    """Return the rows of the ids that all parties have, and the ids that each party lacks.

    Args:
        keys: the digests of each party.
        lead: the party whose order of rows is used for the shared rows.

    Returns:
        For each party, the row numbers of the shared ids; and for each party, the ids that it lacks. Such an id is
        represented by the name of another party that has it, and by the row number in that party's table.
    """
    _, codes = np.unique(values_of(np.concatenate(list(keys.values()))), return_inverse=True)
    ends = np.cumsum([len(digests) for digests in keys.values()])
    codes_of = dict(zip(keys, np.split(codes, ends[:-1]), strict=True))
    row_of = {name: np.full(int(codes.max()) + 1, -1, dtype=np.intp) for name in keys}
    for name, party_codes in codes_of.items():
        row_of[name][party_codes] = np.arange(len(party_codes))
    everywhere = np.logical_and.reduce([rows >= 0 for rows in row_of.values()])
    common = codes_of[lead][everywhere[codes_of[lead]]]
    lacking: dict[str, list[tuple[str, int]]] = {name: [] for name in keys}
    seen = np.zeros(len(everywhere), dtype=bool)
    for owner, party_codes in codes_of.items():
        first = party_codes[~seen[party_codes]]
        seen[party_codes] = True
        for name, absent_ids in lacking.items():
            absent = first[row_of[name][first] < 0]
            absent_ids += [(owner, int(row)) for row in row_of[owner][absent]]
    return {name: rows[common] for name, rows in row_of.items()}, lacking


def values_of(keys: Keys) -> NDArray[np.void]:
    """Return digests (n, ID_DIGEST) as an array (n,) whose elements can be compared."""
    return np.ascontiguousarray(keys).view(f"V{ID_DIGEST}").ravel()
