"""Files that contain a digest of themselves, so that damage is found when they are read."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from securevfl.base.files import write_atomic


class DamagedFileError(ValueError):
    """A file that is no longer what was written."""


_TAIL_BYTES, _JSON_TAIL_BYTES = 83, 79

_TAIL = re.compile(rb"\n(securevfl sha256) ([0-9a-f]{64})\n\Z")

_JSON_TAIL = re.compile(rb', "(sha256)": "([0-9a-f]{64})"\}\Z')


def write_checked(path: Path, data: bytes) -> None:
    """`write_atomic` with a digest behind the data, for `read_checked`."""
    write_atomic(path, data + f"\nsecurevfl sha256 {hashlib.sha256(data).hexdigest()}\n".encode())


def read_checked(path: Path) -> bytes:
    """Read what `write_checked` wrote. DamagedFileError if it is something else, OSError if it cannot be read."""
    data = path.read_bytes()
    tail = _TAIL.search(data[-_TAIL_BYTES:])
    if tail is None:
        raise DamagedFileError
    whole = data[:-_TAIL_BYTES]
    return _as_written(whole, tail)


def write_checked_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a table as JSON with the digest of its text as its last entry, `sha256`; for `read_checked_json`."""
    text = json.dumps(value).encode()
    write_atomic(path, text[:-1] + f', "sha256": "{hashlib.sha256(text).hexdigest()}"}}'.encode())


def read_checked_json(path: Path) -> tuple[Any, bool]:
    """Read JSON, and whether a digest of it was inside. DamagedFileError if it is not of this text, other ValueError if
    it is no JSON, OSError if it cannot be read."""
    data = path.read_bytes()
    tail = _JSON_TAIL.search(data[-_JSON_TAIL_BYTES:])
    if tail is None:
        return json.loads(data.decode("utf-8")), False
    return json.loads(_as_written(data[:-_JSON_TAIL_BYTES] + b"}", tail).decode("utf-8")), True


def _as_written(data: bytes, tail: re.Match[bytes]) -> bytes:
    """Return the data, if its digest is that of the tail. DamagedFileError if not."""
    if hashlib.sha256(data).hexdigest().encode() != tail[2]:
        raise DamagedFileError
    return data
