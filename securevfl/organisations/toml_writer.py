"""Write plain data as TOML."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def to_toml(table: Mapping[str, Any]) -> str:
    """Convert plain data (str, bool, int, float, lists and dicts) to TOML that `tomllib` reads back unchanged."""
    return "\n".join(_lines((), table)).lstrip("\n") + "\n"


def to_toml_line(key: str, value: Any) -> str:
    """Convert one key to a line of TOML; a mapping becomes an inline table."""
    return f"{_key(key)} = {_value(value)}"


def _lines(path: tuple[str, ...], table: Mapping[str, Any]) -> list[str]:
    tables = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    lines = ["", f"[{'.'.join(map(_key, path))}]"] if path and (len(tables) < len(table) or not table) else []
    lines += [f"{_key(key)} = {_value(value)}" for key, value in table.items() if key not in tables]
    for key, value in tables.items():
        lines += _lines((*path, key), value)
    return lines


def _key(key: str) -> str:
    bare = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if bare else _value(key)


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case int():
            return str(value)
        case float():
            return repr(value) if math.isfinite(value) else str(value)
        case Mapping():
            return "{ " + ", ".join(f"{_key(key)} = {_value(inner)}" for key, inner in value.items()) + " }"
        case list() | tuple():
            return "[" + ", ".join(map(_value, value)) + "]"
    raise TypeError(f"TOML has no type for {type(value).__name__}")
