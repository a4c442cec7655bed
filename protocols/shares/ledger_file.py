"""A file of lines of JSON that grows: what a ledger knows, on disk before it counts, and shared by processes.

The first line holds a key of the file's own. Processes take turns by a lock, and each takes in what the others have
added before it adds a line. A last line that was cut off by a kill has let nothing out and is dropped.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from securevfl.base.files import make_private, write_whole
from securevfl.errors import ConfigError

__all__ = ["LedgerFile"]

Line = dict[str, Any]


class LedgerFile:
    """The lines of one file, or without a path those of one process. ConfigError if the file is none of ours."""

    def __init__(self, path: Path | None, take_in: Callable[[Line], None]) -> None:
        """take_in: is given every line once, in order, this process's own among them."""
        self.path = path
        self.key = os.urandom(32)
        self._take_in = take_in
        self._known = 0  # bytes of the file that are taken in
        with self.locked():
            pass

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else changes the file meanwhile, and all that it holds is known."""
        if self.path is None:
            yield
            return
        make_private(self.path.parent)
        lock = os.open(self.path.with_name(f"{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # falls with the process
            self._catch_up(self.path)
            yield
        finally:
            os.close(lock)

    def add(self, line: Line) -> None:
        """Write a line to disk, and take it in; call this under the lock."""
        if self.path is not None:
            self._known += len(_append(self.path, json.dumps(line).encode() + b"\n"))
        self._take_in(line)

    def _catch_up(self, path: Path) -> None:
        """Take in what others have added to the file, which is made if it was never there."""
        if not self._known and not path.exists():
            write_whole(path, json.dumps({"key": self.key.hex()}).encode() + b"\n")
        try:
            with path.open("rb") as file:
                file.seek(self._known)
                lines = file.read().splitlines(keepends=True)
            if lines and not lines[-1].endswith(b"\n") and (self._known or len(lines) > 1) and _torn(lines[-1]):
                os.truncate(path, self._known + sum(map(len, lines[:-1])))
                del lines[-1]
            if not self._known:
                self.key = bytes.fromhex(json.loads(lines[0])["key"])
            for line in lines[not self._known :]:
                self._take_in(json.loads(line))
            if lines and not lines[-1].endswith(b"\n"):
                lines[-1] += _append(path, b"\n")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
            raise ConfigError(
                f"{path}: a ledger of scores was expected, something else is there; put it back, or name another file"
            ) from None
        self._known += sum(map(len, lines))


def _append(path: Path, octets: bytes) -> bytes:
    """Append these bytes to the file, and return them once they are on disk."""
    with path.open("ab") as file:
        file.write(octets)
        file.flush()
        os.fsync(file.fileno())
    return octets


def _torn(line: bytes) -> bool:
    """Whether it is the beginning of a line alone."""
    try:
        json.loads(line)
    except ValueError:
        return True
    return False
