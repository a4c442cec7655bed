"""Which chunks of work ahead a party has begun to go through: their names, kept away from the chunks themselves.

A chunk is a folder's, and a folder can be put back from a backup, at one party or at all. Names are spent in a file
of another place, beside the disclosure ledger: a chunk is begun once for each name, whoever has it again. Every party
keeps its own, so that one whose folder was put back, and its peers, refuse what they have gone through. A name is a
digest of nonces that all parties have, and no secret.

A line is a name and a digest of all of the file up to it, in hex, so that a name that is no longer what was written
is noticed; lines that an earlier version wrote have no digest of their own and are in that of the next. A last line
that is cut off was never told: its process has ended while it wrote, or the disk was full.

Where folder and names are put back together, as by a snapshot of the whole machine, nothing on the machine can tell.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from securevfl.base.files import append_atomic, make_private_folder
from securevfl.errors import ConfigError, ProtocolError
from securevfl.protocols.shares.preprocessing_store import NAME_BYTES

Digest = Any  # what hashlib makes


class SpentChunks:
    """The names in a file, or without a path those of this object.

    StorageError if the file cannot be written, ConfigError if it is damaged.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._names: set[str] = set()

    def contains(self, name: bytes) -> bool:
        """Whether a chunk of this name has been begun."""
        with self.locked() as file:
            self._take_in(file)
        return name.hex() in self._names

    def spend(self, name: bytes) -> None:
        """Note that a chunk is begun, on disk when this returns. ProtocolError if it has been before."""
        with self.locked() as file:
            before, end = self._take_in(file)
            if name.hex() in self._names:
                raise ProtocolError(
                    "shares: a chunk that this party has begun before is spent, its folder was put back or copied; "
                    "make a new chunk"
                )
            if file is not None and self._path is not None:
                os.ftruncate(file, end)  # of what was cut off nothing was told
                append_atomic(file, _line(before, name.hex().encode()) + b"\n", self._path)
            self._names.add(name.hex())

    def _take_in(self, file: int | None) -> tuple[Digest, int]:
        """Take in what other processes have added, and return a digest of the whole lines and their length."""
        before, checked = hashlib.sha256(), False
        if file is None:
            return before, 0
        with open(os.dup(file), "rb") as opened:
            opened.seek(0)
            whole = opened.read()
        *lines, last = whole.split(b"\n")
        for line in lines:
            name = line[: 2 * NAME_BYTES]
            if line == _line(before, name):
                checked = True
            elif checked or line != name or len(name) < 2 * NAME_BYTES:  # as an earlier version wrote them
                raise self._damaged()
            self._names.add(name.decode("ascii", "replace"))
            before.update(line + b"\n")
        name = last[: 2 * NAME_BYTES]
        if name.strip(b"0123456789abcdef") or not _line(before, name).startswith(last):
            raise self._damaged()
        return before, len(whole) - len(last)

    def _damaged(self) -> ConfigError:
        return ConfigError(
            f"{self._path}: the names of spent work ahead as they were written were expected, the file is damaged; put "
            "a copy back, or move it away with all work done ahead (--ahead) and make that anew"
        )

    @contextmanager
    def locked(self) -> Iterator[int | None]:
        """Return the file, open and changed by nobody else meanwhile."""
        if self._path is None:
            yield None
            return
        make_private_folder(self._path.parent)
        file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)  # falls with the process
            yield file
        finally:
            os.close(file)


def _line(before: Digest, name: bytes) -> bytes:
    """Return the line of a name in hex after those that were digested before, without its end."""
    upto = before.copy()
    upto.update(name)
    digest: str = upto.hexdigest()
    return name + b" " + digest[:16].encode()
