"""Ids as digests of 16 bytes: the same for equal ids whatever their type, and small enough for tables of any length."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.curve import canonical_id
from securevfl.errors import IdError

ID_DIGEST = 16  # bytes

Keys = NDArray[np.uint8]  # n x ID_DIGEST


def id_digest(name: str, value: Any) -> bytes:
    """What stands for an id of party `name`, equal where ids are. IdError if it cannot be an id."""
    try:
        return hashlib.blake2b(canonical_id(value), digest_size=ID_DIGEST).digest()
    except IdError as error:
        raise IdError(f"party {name}: {error}") from None


def id_keys(name: str, pieces: Iterable[Iterable[Any]]) -> Keys:
    """The digests of the ids of all rows, which come in pieces. IdError if one is none, or occurs twice."""
    whole = b"".join(b"".join(id_digest(name, value) for value in piece) for piece in pieces)
    keys = np.frombuffer(whole, np.uint8).reshape(-1, ID_DIGEST)
    _, counts = np.unique(_values(keys), return_counts=True)
    if twice := int((counts > 1).sum()):
        raise IdError(f"party {name}: unique ids were expected, {twice} ids occur more than once; keep one row of each")
    return keys


def order_digest(keys: Keys) -> bytes:
    """Of the ids of all rows in their order, 32 bytes, by which parties compare."""
    return hashlib.sha256(np.ascontiguousarray(keys).data).digest()


def shared_rows(
    keys: Mapping[str, Keys], lead: str
) -> tuple[dict[str, NDArray[np.intp]], dict[str, list[tuple[str, int]]]]:
    """By party: the rows of the ids that all have, in the order of `lead`; and the ids that it lacks.

    An id that a party lacks is given as the first other party that has it, and the row there.
    """
    _, codes = np.unique(_values(np.concatenate(list(keys.values()))), return_inverse=True)
    ends = np.cumsum([len(own) for own in keys.values()])
    coded = dict(zip(keys, np.split(codes, ends[:-1]), strict=True))
    row = {name: np.full(int(codes.max()) + 1, -1, dtype=np.intp) for name in keys}
    for name, own in coded.items():
        row[name][own] = np.arange(len(own))
    everywhere = np.logical_and.reduce([own >= 0 for own in row.values()])
    common = coded[lead][everywhere[coded[lead]]]
    lacking: dict[str, list[tuple[str, int]]] = {name: [] for name in keys}
    seen = np.zeros(len(everywhere), dtype=bool)
    for owner, own in coded.items():
        first = own[~seen[own]]
        seen[own] = True
        for name, found in lacking.items():
            absent = first[row[name][first] < 0]
            found += [(owner, int(at)) for at in row[owner][absent]]
    return {name: own[common] for name, own in row.items()}, lacking


def _values(keys: Keys) -> NDArray[np.void]:
    return np.ascontiguousarray(keys).view(f"V{ID_DIGEST}").ravel()
