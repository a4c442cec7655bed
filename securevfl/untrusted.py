"""Bounds and escapes for everything that a peer, a client or a file supplies.

Other people write job files, files of peers (parties and addresses), model files, HTTP requests and messages. This
module bounds their nesting, their numbers and the lengths of their texts and lists before other code uses them. It
escapes control characters before a terminal or a log shows them. The functions raise `UntrustedInputError`, a
ValueError; callers convert it to an error with a code.
"""

from __future__ import annotations

import codecs
import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

MAX_TOML_BYTES = 1 << 20
"""Largest size of a job file or a file of peers."""
MAX_NESTING = 24
"""Maximum depth of nested tables and lists."""
MAX_TEXT = 4096
"""Largest number of characters of a text in a job, a file of peers or a header of a message."""
MAX_NAME = 200
"""Largest number of characters of a name."""
MAX_LIST = 65_536
"""Largest number of entries of a list or a table of a job."""
MAX_INTEGER = 2**53
"""Largest absolute value of a whole number: every larger one would be rounded as a floating-point number."""
_MAX_KEY_PARTS = 64  # maximum number of dots in a line of TOML; parsing a key of k parts takes time k^2

_UNSAFE = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f"  # control characters, except the line feed
    "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\ufff9-\ufffb]"  # invisible, or change direction
)
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class UntrustedInputError(ValueError):
    """The input exceeds a bound or contains control characters. The error's text never quotes the input."""


def printable(text: str) -> str:
    r"""Replace control characters except line feeds by escapes such as `\x1b`.

    Invisible characters and those that change the direction of writing are replaced as well, because they would make
    a reader see a different text from the one that is agreed on.

    Args:
        text: any text.

    Returns:
        A text that cannot move a terminal's cursor or change its colours.
    """
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def shortened(text: str, length: int = MAX_NAME) -> str:
    """Return a text on one line with at most `length` characters, with escapes in place of control characters."""
    cut = text if len(text) <= length else text[: length - 3] + "..."
    return printable(cut).replace("\n", "\\n")


def has_control_characters(text: str) -> bool:
    """Return whether a text has characters that must not occur in a name, such as line feeds and escapes."""
    return _CONTROL.search(text) is not None


def check_text(text: str, limit: int = MAX_TEXT) -> str:
    """Return a text, or raise UntrustedInputError if it is too long or has control characters."""
    if len(text) > limit:
        raise UntrustedInputError(f"a text has {len(text):,} characters, and at most {limit:,} are allowed")
    if has_control_characters(text):
        raise UntrustedInputError("a text contains control characters")
    return text


def check_plain(value: Any, *, depth: int = MAX_NESTING) -> None:
    """Check that data are not nested too deeply, and contain no long text or list, large number or control character.

    Args:
        value: mappings, sequences, texts, numbers, dates and None.
        depth: the largest number of lists and tables inside each other.

    Raises:
        UntrustedInputError: a bound is exceeded.
    """
    level: list[Any] = [value]
    for _ in range(depth + 1):
        deeper: list[Any] = []
        for item in level:
            deeper += _check_item(item)
        if not deeper:
            return
        level = deeper
    raise UntrustedInputError(f"tables and lists are nested more than {depth} levels deep")


def _check_item(item: Any) -> list[Any]:
    """Check one item of the data. Return the items that it contains, which the caller then checks in turn."""
    if isinstance(item, str):
        check_text(item)
    elif isinstance(item, bool):
        return []
    elif isinstance(item, int):
        if abs(item) > MAX_INTEGER:
            raise UntrustedInputError("a whole number has more than 53 bits")
    elif isinstance(item, float):
        if not math.isfinite(item):
            raise UntrustedInputError("a number is infinite or not a number")
    elif isinstance(item, Mapping):
        _check_length(item)
        for key in item:
            check_text(str(key), MAX_NAME)
        return list(item.values())
    elif isinstance(item, Sequence):
        _check_length(item)
        return list(item)
    return []


def _check_length(items: Mapping[Any, Any] | Sequence[Any]) -> None:
    if len(items) > MAX_LIST:
        raise UntrustedInputError(f"a list or a table has {len(items):,} entries, and at most {MAX_LIST:,} are allowed")


def read_toml(file: BinaryIO) -> dict[str, Any]:
    """Parse a TOML file, with or without a byte order mark; a file that is too large is not read whole."""
    return parse_toml(file.read(MAX_TOML_BYTES + len(codecs.BOM_UTF8) + 1).removeprefix(codecs.BOM_UTF8))


def parse_toml(data: bytes) -> dict[str, Any]:
    """Parse TOML within the bounds of this module.

    Args:
        data: the bytes of the file.

    Returns:
        Its keys and values.

    Raises:
        UntrustedInputError: a bound is exceeded, or the file is not TOML.
    """
    if len(data) > MAX_TOML_BYTES:
        raise UntrustedInputError(f"the file has more than the {MAX_TOML_BYTES:,} bytes that are allowed")
    if any(line.count(b".") > _MAX_KEY_PARTS for line in data.splitlines()):
        raise UntrustedInputError(f"a line has more than {_MAX_KEY_PARTS} dots")
    try:
        keys = tomllib.loads(data.decode("utf-8"))
    except RecursionError:
        raise UntrustedInputError(f"tables and lists are nested more than {MAX_NESTING} levels deep") from None
    except UnicodeDecodeError:
        raise UntrustedInputError("the file is not text in UTF-8") from None
    except ValueError as cause:  # TOMLDecodeError, or a number with more digits than Python converts
        raise UntrustedInputError(shortened(str(cause))) from None
    check_plain(keys)
    return keys


def parse_json(data: bytes, *, depth: int = MAX_NESTING) -> Any:
    """Parse JSON with bounded nesting. The caller must bound the size of `data`, and check numbers and lengths itself.

    Args:
        data: the bytes.
        depth: the largest number of objects and arrays inside each other.

    Returns:
        The value.

    Raises:
        UntrustedInputError: the data is not JSON, or is nested too deeply.
    """
    if _nesting_of(data) > depth:
        raise UntrustedInputError(f"objects and arrays are nested more than {depth} levels deep")
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except UntrustedInputError:
        raise
    except (ValueError, RecursionError):  # not UTF-8, not JSON, or a number with more digits than Python converts
        raise UntrustedInputError("the data is not JSON") from None


_STRUCTURE = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)


def _nesting_of(data: bytes) -> int:
    """Return how deeply arrays and objects are nested, without parsing the data."""
    depth = deepest = 0
    for match in _STRUCTURE.finditer(data):
        first = match[0][:1]
        if first in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif first in b"]}":
            depth -= 1
    return deepest


def _refuse_constant(name: str) -> None:
    raise UntrustedInputError(f"{name} is not a number of JSON")
