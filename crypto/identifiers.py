"""Canonical ids: bytes for the id of a row that are the same at every party, whatever type the id has in its table."""

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

CanonicalIds = Sequence[bytes] | NDArray[np.bytes_]
"""Canonical ids in the order of the rows."""

_MAX_DIGITS = 100
_BLOCK_BYTES = 16  # length of a key that `id_keys` returns
_MIXING_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio, an odd number whose bits look random
_MAX_BULK_BYTES = 64  # longest id that `canonical_ids_in_bulk` converts
_DIGEST_MARK = b"\x7e"  # last byte, 126, of a key that contains a digest instead of the id


class CanonicalId(bytes):
    """The canonical bytes of an id; `canonical_id` returns them as they are, so an id is made canonical once."""

    __slots__ = ()


def canonical_id(value: Any) -> CanonicalId:
    """Return the canonical bytes of an id.

    An id is text in Unicode NFC without surrounding white space, encoded in UTF-8. Therefore these are equal:

    - 7, numpy.int64(7), 7.0, Decimal("7.00"), "7", " 7 ", b"7" (an integer column with gaps is read as floats);
    - a UUID and its lower-case text with hyphens;
    - a letter with a combining accent and the composed letter.

    These differ: "007" and 7, "7.0" and 7, "a" and "A". Bytes that are not UTF-8 are not changed, but the byte 255
    is put before them. Some digests are valid UTF-8 by chance and count as text, so write digests as hexadecimal text.

    Args:
        value: a canonical id, text, bytes, an integer, a float or decimal without fraction, or a UUID.

    Returns:
        The canonical bytes.

    Raises:
        IdError: if the value is missing, empty, a fraction, too large to be exact, a boolean or of another type.
    """
    return value if isinstance(value, CanonicalId) else CanonicalId(_canonical(value))


def _canonical(value: Any) -> bytes:
    if isinstance(value, UUID):
        value = str(value)
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return b"\xff" + bytes(value)  # no UTF-8 text contains this byte
    if isinstance(value, str):
        text = unicodedata.normalize("NFC", value).strip()
    elif isinstance(value, int | np.integer) and not isinstance(value, bool | np.timedelta64):
        text = _decimal(int(value))
    elif isinstance(value, float | np.floating | Decimal):
        text = _decimal(_exact_integer(value))
    else:
        kind = "missing" if value is None else f"of type {type(value).__name__}"
        raise IdError(
            f"an id is {kind}",
            "drop the row, or convert the id to text, an integer, bytes or a UUID",
            code="SVFL-ID-MISSING" if value is None else "SVFL-ID-INVALID",
        )
    if not text:
        raise IdError("an id is empty", "drop the row", code="SVFL-ID-MISSING")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise IdError(
            "an id contains an unpaired surrogate, which is not text",
            "correct the encoding of the file",
            code="SVFL-ID-INVALID",
        ) from None


def _exact_integer(value: float | np.floating[Any] | Decimal) -> int:
    if value.is_nan() if isinstance(value, Decimal) else value != value:
        raise IdError("an id is missing (NaN)", "drop the row", code="SVFL-ID-MISSING")
    if isinstance(value, Decimal):
        exact = value.is_finite() and value.adjusted() < _MAX_DIGITS
    else:
        exact = bool(abs(value) < 2 ** (np.finfo(type(value)).nmant + 1))  # the power itself may be a rounded number
    if not exact or value != int(value):
        raise IdError(
            "an id is a fraction, or a number too large to be exact",
            "read the column as text or integers",
            code="SVFL-ID-INVALID",
        )
    return int(value)


def _decimal(number: int) -> str:
    if abs(number) >= 10**_MAX_DIGITS:
        raise IdError(
            f"an id is a number of more than {_MAX_DIGITS} digits", "read the column as text", code="SVFL-ID-INVALID"
        )
    return str(number)


def canonical_ids(values: Iterable[Any]) -> list[bytes]:
    """Return the canonical ids of all rows.

    Args:
        values: the ids, see `canonical_id`.

    Returns:
        The canonical ids in the same order.

    Raises:
        IdError: if a value is not an id, or two rows have the same id; the error names the rows, numbered from 1.
    """
    first_rows: dict[bytes, int] = {}
    for row, value in enumerate(values):
        try:
            canonical = canonical_id(value)
        except IdError as error:
            raise IdError(f"row {row + 1}: {error.problem}", error.remedy, code=error.code, row=row + 1) from None
        if (other := first_rows.setdefault(canonical, row)) != row:
            raise IdError(
                f"rows {other + 1} and {row + 1} of the table have the same id",
                "merge these rows or drop one of them",
                code="SVFL-ID-DUPLICATE",
                rows=(other + 1, row + 1),
            )
    return list(first_rows)


def canonical_ids_in_bulk(values: Any) -> NDArray[np.bytes_] | None:
    """Return the canonical ids (n,) of a simple column without a loop over rows, which is faster.

    A column is simple if it is a list of text in visible ASCII characters, or an array of integers, and no id is longer
    than 64 bytes.

    Args:
        values: the ids.

    Returns:
        The same ids as `canonical_ids`; None if the column is not simple, or if two ids are equal. With a probability
        of n^2 / 2^65, None is returned for different ids as well.
    """
    if isinstance(values, (list, np.ndarray)) and not len(values):
        return None
    if isinstance(values, np.ndarray) and values.dtype.kind in "iu" and values.ndim == 1:
        column = values.astype("S")
    else:
        values = values.tolist() if isinstance(values, np.ndarray) else values
        if (
            not isinstance(values, list)
            or set(map(type, values)) != {str}
            or not 0 < max(map(len, values)) <= _MAX_BULK_BYTES
        ):
            return None
        try:
            column = np.array(values, "S")
        except UnicodeEncodeError:
            return None
        if int(np.count_nonzero(column.view(np.uint8) > ord(" "))) != sum(map(len, values)):
            return None  # a text contains white space or zero bytes
    keys = id_keys(column)
    mixed = np.sort(keys[:, 0] ^ keys[:, 1] * _MIXING_FACTOR)
    none_empty = column.view(np.uint8).reshape(len(column), -1)[:, 0].all()
    return column if none_empty and (mixed[1:] != mixed[:-1]).all() else None


def id_keys(ids: CanonicalIds) -> NDArray[np.uint64]:
    """Return a key of 16 bytes for each of n canonical ids, as two 64-bit integers. Different ids have different keys.

    The key of an id of at most 15 bytes is the id, padded with zeros to 15 bytes, and a byte with the length of the
    id. The key of a longer id is a BLAKE2b digest of 15 bytes, and the byte 126. The last byte is the most significant
    one and always below 128, so the highest bit of a key is 0.

    Args:
        ids: the canonical ids.

    Returns:
        The keys (n, 2).
    """
    if not len(ids):
        return np.zeros((0, 2), np.uint64)
    keys = np.zeros((len(ids), _BLOCK_BYTES), np.uint8)
    lengths = np.fromiter(map(len, ids), np.int64, len(ids)) if isinstance(ids, list) else np.strings.str_len(ids)
    if (lengths < _BLOCK_BYTES).all():
        keys[:, :-1] = np.array(ids, f"S{_BLOCK_BYTES - 1}").view(np.uint8).reshape(len(ids), -1)
        keys[:, -1] = lengths
    else:
        blocks = [
            canonical.ljust(_BLOCK_BYTES - 1, b"\0") + bytes([len(canonical)])
            if len(canonical) < _BLOCK_BYTES
            else hashlib.blake2b(canonical, digest_size=_BLOCK_BYTES - 1, person=b"securevfl id").digest()
            + _DIGEST_MARK
            for canonical in ids
        ]
        keys = np.frombuffer(b"".join(blocks), np.uint8)
    return keys.reshape(-1).view(np.uint64).reshape(-1, 2)
