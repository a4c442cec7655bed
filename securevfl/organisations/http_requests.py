"""The schema of a request for scores, and its check: every body of another form is refused in one place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from securevfl.untrusted import MAX_INTEGER, MAX_NAME, MAX_TEXT, UntrustedInputError, check_text, parse_json

MAX_BODY_BYTES = 1 << 20  # bytes of a request
_MAX_DEPTH = 4  # nesting of JSON: the body, its list of rows, a row, and the row's columns or id

ROW_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {
            "type": ["string", "integer", "object"],
            "description": "Id of a row as your table writes it; an object if several columns form the id. The "
            "gateway's table has this row, unless the request contains its columns.",
            "maxLength": MAX_NAME,
            "minimum": -MAX_INTEGER,
            "maximum": MAX_INTEGER,
        },
        "columns": {
            "type": "object",
            "additionalProperties": {"type": ["number", "string", "boolean", "null"], "maxLength": MAX_TEXT},
            "description": "All columns of the model, with values as your table writes them; null if missing.",
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
    if isinstance(row_id, Mapping):
        for name, value in row_id.items():
            check_text(name, MAX_NAME)
            if not (isinstance(value, float) and is_number(value)):
                _check_id_value(value)
    else:
        _check_id_value(row_id)


def _check_id_value(value: Any) -> None:
    if isinstance(value, str):
        check_text(value, MAX_NAME)
    elif isinstance(value, bool) or not isinstance(value, int) or abs(value) > MAX_INTEGER:
        raise UntrustedInputError("an id is neither a text nor a whole number of at most 53 bits")


def _check_columns(columns: Any) -> None:
    if columns is None:
        return
    if not isinstance(columns, Mapping):
        raise UntrustedInputError("the columns of a row are not an object")
    for name, value in columns.items():
        check_text(name)
        if isinstance(value, str):
            check_text(value)
        elif not (value is None or isinstance(value, bool) or is_number(value)):
            raise UntrustedInputError("a column is neither a finite number nor a text, a truth value or null")


def is_number(value: Any) -> bool:
    """Return whether a value is a number that a floating-point number of 8 bytes can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False
