"""The schema of a request for scores, and its check: every body of another form is refused in one place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from securevfl.untrusted import MAX_INTEGER, MAX_NAME, UntrustedInputError, check_text, parse_json

MAX_BODY_BYTES = 1 << 20  # bytes of a request
_MAX_DEPTH = 4  # the body, its rows, a row, its columns

ROW_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {
            "type": ["string", "integer"],
            "description": "Id of a row of the gateway's table, unless the request contains its columns.",
            "maxLength": MAX_NAME,
            "minimum": -MAX_INTEGER,
            "maximum": MAX_INTEGER,
        },
        "columns": {
            "type": "object",
            "additionalProperties": {"type": ["number", "null"], "minimum": -1.7e308, "maximum": 1.7e308},
        },
    },
}
"""The schema of a row, as `/openapi.json` states it."""


def parse_rows(body: bytes) -> list[dict[str, Any]]:
    """Parse the body of a request.

    Args:
        body: the body.

    Returns:
        The rows, each with an `id` and perhaps with `columns`.

    Raises:
        UntrustedInputError: the body is not JSON of the schema.
    """
    request = parse_json(body, depth=_MAX_DEPTH)
    rows = request.get("rows") if isinstance(request, dict) else None
    if not (isinstance(rows, list) and rows):
        raise UntrustedInputError("there are no rows")
    for row in rows:
        if not isinstance(row, dict):
            raise UntrustedInputError("a row is not an object")
        _check_id(row.get("id"))
        _check_columns(row.get("columns"))
    return rows


def _check_id(row_id: Any) -> None:
    if isinstance(row_id, str):
        check_text(row_id, MAX_NAME)
    elif isinstance(row_id, bool) or not isinstance(row_id, int) or abs(row_id) > MAX_INTEGER:
        raise UntrustedInputError("an id is neither a text nor a whole number of at most 53 bits")


def _check_columns(columns: Any) -> None:
    if columns is None:
        return
    if not isinstance(columns, Mapping):
        raise UntrustedInputError("the columns of a row are not an object")
    for name, value in columns.items():
        check_text(name)
        if value is not None and not is_number(value):
            raise UntrustedInputError("a column is neither a finite number nor null")


def is_number(value: Any) -> bool:
    """Return whether a value is a number that a floating-point number of 8 bytes can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False
