"""Canonical ids: the bytes that stand for an id at every party, whatever type its table gave the column."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from securevfl.errors import IdError

CanonicalIds = Sequence[bytes] | NDArray[np.bytes_]  # canonical, one after another

_MAX_DIGITS = 100

_KEY = 16  # octets of a key

_MIXING = np.uint64(0x9E3779B97F4A7C15)  # odd, of no pattern

_PLAIN = 64  # octets of an id that is taken in bulk

_DIGESTED = b"\x7e"


def canonical_id(value: Any) -> bytes:
    """Return the bytes that stand for an id, the same at every party whatever type its table gave the column.

    An id is text: Unicode NFC, without white space at its ends, in UTF-8. So these are equal:

    - 7, numpy.int64(7), 7.0, Decimal("7.00"), "7", " 7 ", b"7" (an integer column with gaps is read as floats);
    - a UUID and its lower-case text with hyphens;
    - a letter with a combining accent and the composed letter.

    These differ: "007" and 7, "7.0" and 7, "a" and "A". Bytes that are not UTF-8 (a digest) stand for themselves.
    IdError for None, NaN, what is empty, a fraction, a float too large to be exact, a boolean, or another type.
    """
    if isinstance(value, UUID):
        value = str(value)
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return b"\xff" + bytes(value)  # no UTF-8 text holds this byte
    if isinstance(value, str):
        text = unicodedata.normalize("NFC", value).strip()
    elif isinstance(value, int | np.integer) and not isinstance(value, bool | np.timedelta64):
        text = _decimal(int(value))
    elif isinstance(value, float | np.floating | Decimal):
        text = _decimal(_whole(value))
    else:
        kind = "missing" if value is None else f"of type {type(value).__name__}"
        raise IdError(f"an id is {kind}; expected text, an integer, bytes or a UUID: drop the row or convert it")
    if not text:
        raise IdError("an id is empty; drop the row")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise IdError("an id holds an unpaired surrogate, which is not text; mend the encoding of the file") from None


def _whole(value: float | np.floating[Any] | Decimal) -> int:
    if value.is_nan() if isinstance(value, Decimal) else value != value:
        raise IdError("an id is missing (NaN); drop the row")
    if isinstance(value, Decimal):
        exact = value.is_finite() and value.adjusted() < _MAX_DIGITS
    else:
        exact = bool(abs(value) <= 2 ** (np.finfo(type(value)).nmant + 1))
    if not exact or value != int(value):
        raise IdError("an id is a fraction, or a number too large to be exact; read the column as text or integers")
    return int(value)


def _decimal(number: int) -> str:
    if abs(number) >= 10**_MAX_DIGITS:
        raise IdError(f"an id is a number of more than {_MAX_DIGITS} digits; read the column as text")
    return str(number)


def canonical_ids(values: Iterable[Any]) -> list[bytes]:
    """`canonical_id` of every row. IdError, naming the row, if one cannot be an id or two rows have the same."""
    first: dict[bytes, int] = {}
    for row, value in enumerate(values):
        try:
            canonical = canonical_id(value)
        except IdError as error:
            raise IdError(f"row {row}: {error}") from None
        if (other := first.setdefault(canonical, row)) != row:
            raise IdError(f"rows {other} and {row} have the same id; expected one row an id: merge or drop them")
    return list(first)


def canonical_ids_in_bulk(values: Any) -> NDArray[np.bytes_] | None:
    """Return what `canonical_ids` would (n,), in bulk, where all ids are texts of visible ASCII, or whole numbers of an
    array, of up to 64 octets and all different. None otherwise, and for n ids that are so once in 2^65 / n^2."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "iu" and values.ndim == 1:
        column = values.astype("S")
    else:
        values = values.tolist() if isinstance(values, np.ndarray) else values
        if not isinstance(values, list) or set(map(type, values)) != {str} or not 0 < max(map(len, values)) <= _PLAIN:
            return None
        try:
            column = np.array(values, "S")
        except UnicodeEncodeError:
            return None
        if int(np.count_nonzero(column.view(np.uint8) > ord(" "))) != sum(map(len, values)):
            return None  # blanks and zeros
    keys = id_keys(column)
    mixed = np.sort(keys[:, 0] ^ keys[:, 1] * _MIXING)
    none_empty = column.view(np.uint8).reshape(len(column), -1)[:, 0].all()
    return column if none_empty and (mixed[1:] != mixed[:-1]).all() else None


def id_keys(ids: CanonicalIds) -> NDArray[np.uint64]:
    """Return a block of 16 octets (n, 2) for each of n canonical ids, different for different ids.

    An id of up to 15 octets is its own block, filled up with zeros, its length in the last one; of longer ones it is 15
    octets of BLAKE2b and 128 - 2 in the last. So the highest bit is never set.
    """
    keys = np.zeros((len(ids), _KEY), np.uint8)
    lengths = np.fromiter(map(len, ids), np.int64, len(ids)) if isinstance(ids, list) else np.strings.str_len(ids)
    if (lengths < _KEY).all():
        keys[:, :-1] = np.array(ids, f"S{_KEY - 1}").view(np.uint8).reshape(len(ids), -1)
        keys[:, -1] = lengths
    else:
        blocks = [
            each.ljust(_KEY - 1, b"\0") + bytes([len(each)])
            if len(each) < _KEY
            else hashlib.blake2b(each, digest_size=_KEY - 1, person=b"securevfl id").digest() + _DIGESTED
            for each in ids
        ]
        keys = np.frombuffer(b"".join(blocks), np.uint8)
    return keys.reshape(-1).view(np.uint64).reshape(-1, 2)
