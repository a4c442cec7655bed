"""Files that contain a SHA-256 digest of their content, so that damage is detected when they are read.

Checkpoints and parts of models are stored in this way. Without the digest, a bit that has changed on disk would change
weights or predictions and nobody would notice.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from securevfl.base.files import write_atomic


class DamagedFileError(ValueError):
    """A file whose content does not match its digest."""


_TAIL_BYTES, _JSON_TAIL_BYTES = 83, 79
_TAIL = re.compile(rb"\n(securevfl sha256) ([0-9a-f]{64})\n\Z")
_JSON_TAIL = re.compile(rb', "(sha256)": "([0-9a-f]{64})"\}\Z')


def write_checked(path: Path, data: bytes) -> None:
    """Write data followed by its digest, for `read_checked`; raise StorageError as `write_atomic` does."""
    write_atomic(path, data + f"\nsecurevfl sha256 {hashlib.sha256(data).hexdigest()}\n".encode())


def read_checked(path: Path) -> bytes:
    """Read the data of a file that `write_checked` wrote.

    Args:
        path: the file.

    Returns:
        The data without its digest.

    Raises:
        DamagedFileError: if the digest is missing or does not match.
        OSError: if the file cannot be read.
    """
    data = path.read_bytes()
    tail = _TAIL.search(data[-_TAIL_BYTES:])
    if tail is None:
        raise DamagedFileError
    return _verified(data[:-_TAIL_BYTES], tail)


def write_checked_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a mapping as JSON with the additional last entry `sha256`, the digest of the JSON without this entry.

    Args:
        path: the file.
        value: the mapping.

    Raises:
        StorageError: if the file cannot be written.
    """
    text = json.dumps(value).encode()
    write_atomic(path, text[:-1] + f', "sha256": "{hashlib.sha256(text).hexdigest()}"}}'.encode())


def read_checked_json(path: Path) -> tuple[Any, bool]:
    """Read JSON that may contain its digest.

    Args:
        path: the file.

    Returns:
        The value without the digest, and whether there was a digest.

    Raises:
        DamagedFileError: if the digest does not match.
        ValueError: if the file is not JSON.
        OSError: if the file cannot be read.
    """
    data = path.read_bytes()
    tail = _JSON_TAIL.search(data[-_JSON_TAIL_BYTES:])
    if tail is None:
        return json.loads(data.decode("utf-8")), False
    return json.loads(_verified(data[:-_JSON_TAIL_BYTES] + b"}", tail).decode("utf-8")), True


def _verified(data: bytes, tail: re.Match[bytes]) -> bytes:
    """Return the data if its digest is the one at the end of the file (`tail`); else raise DamagedFileError."""
    if hashlib.sha256(data).hexdigest().encode() != tail[2]:
        raise DamagedFileError
    return data
