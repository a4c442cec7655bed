"""Which chunks of work ahead a party has begun to go through: their names, kept away from the chunks themselves.

A chunk is a folder's, and a folder can be put back from a backup, at one party or at all. Names are spent in a file of
another place, beside the disclosure ledger: a chunk is begun once for each name, whoever has it again. Every party
keeps its own, so that one whose folder was put back, and its peers, refuse what they have gone through. A name is a
digest of nonces that all parties have, and no secret.

Where folder and names are put back together, as by a snapshot of the whole machine, nothing on the machine can tell.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from securevfl.base.files import make_private
from securevfl.errors import ProtocolError

__all__ = ["SpentNames"]


class SpentNames:
    """The names in a file, one a line in hex, or without a path those of this object."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._names: set[str] = set()

    def holds(self, name: bytes) -> bool:
        """Whether a chunk of this name has been begun."""
        with self._locked() as file:
            self._take_in(file)
        return name.hex() in self._names

    def spend(self, name: bytes) -> None:
        """Note that a chunk is begun, on disk when this returns. ProtocolError if it has been before."""
        with self._locked() as file:
            self._take_in(file)
            if name.hex() in self._names:
                raise ProtocolError(
                    "shares: a chunk that this party has begun before is spent, its folder was put back or copied; "
                    "make a new chunk"
                )
            self._names.add(name.hex())
            if file is not None:
                os.lseek(file, 0, os.SEEK_END)
                os.write(file, name.hex().encode() + b"\n")
                os.fsync(file)

    def _take_in(self, file: int | None) -> None:
        """Take in what other processes have added; a line that was cut off is the beginning of no name."""
        if file is not None:
            os.lseek(file, 0, os.SEEK_SET)
            with open(os.dup(file), "rb") as lines:
                self._names.update(lines.read().decode("ascii", "replace").split())

    @contextmanager
    def _locked(self) -> Iterator[int | None]:
        """Return the file, open and changed by nobody else meanwhile."""
        if self._path is None:
            yield None
            return
        make_private(self._path.parent)
        file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)  # falls with the process
            yield file
        finally:
            os.close(file)
