"""The file that lists the preprocessing chunks that a party has begun to use.

A chunk is a file of random masks for a number of iterations, and using a mask twice would reveal residuals. Somebody
may restore the folder of the chunks from a backup, at one party or at all of them. The names of used chunks are
therefore stored in a separate file, next to the disclosure ledger. A party refuses a chunk whose name this file
contains, whichever copy of the chunk it has. All parties of a chunk use the same name. It is a digest of random numbers
that all of them know, and not secret.

A line contains a name in hexadecimal, and a digest of the file up to and including that name, so that changes are
detected. The last line may be incomplete if a process ended while writing it, or if the disk was full. Its chunk was
not used, because a chunk is used only after its line is on disk.

If the folder and this file are restored together, for example by a snapshot of the whole machine, nothing detects it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from securevfl.base.files import append_atomic, make_private_folder
from securevfl.base.platform_files import lock_exclusive
from securevfl.errors import ConfigError, ProtocolError
from securevfl.protocols.shares.preprocessing_store import NAME_BYTES

Digest = Any
"""A hash object of `hashlib`."""


class SpentChunks:
    """The names of used chunks.

    Args:
        path: the file of the names; None stores them in this object only.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._names: set[str] = set()

    def contains(self, name: bytes) -> bool:
        """Return whether a chunk of this name was used."""
        with self._locked() as file:
            self._load(file)
        return name.hex() in self._names

    def spend(self, name: bytes) -> None:
        """Record that a chunk is used. The name is on disk when this method returns.

        Args:
            name: the name of the chunk.

        Raises:
            ProtocolError: the chunk was used before.
            StorageError: the file cannot be written.
        """
        with self._locked() as file:
            digest, end = self._load(file)
            if name.hex() in self._names:
                raise ProtocolError(
                    "shares: this party has already used this preprocessing chunk (its folder was restored or copied)",
                    "generate a new chunk",
                    code="SVFL-PROTOCOL-REPEATED",
                )
            if file is not None and self._path is not None:
                os.ftruncate(file, end)  # removes an incomplete last line, whose chunk was not used
                append_atomic(file, _line(digest, name.hex().encode()) + b"\n", self._path)
            self._names.add(name.hex())

    def _load(self, file: int | None) -> tuple[Digest, int]:
        """Read all names in the file, including those of other processes.

        Args:
            file: the file descriptor, or None.

        Returns:
            A hash object that has read all complete lines, and the length of these lines in bytes.

        Raises:
            ConfigError: the file is damaged.
        """
        digest = hashlib.sha256()
        if file is None:
            return digest, 0
        with open(os.dup(file), "rb") as opened:
            opened.seek(0)
            content = opened.read()
        *lines, incomplete = content.split(b"\n")
        for line in lines:
            name = line[: 2 * NAME_BYTES]
            if line != _line(digest, name):
                raise self._damaged()
            self._names.add(name.decode("ascii", "replace"))
            digest.update(line + b"\n")
        name = incomplete[: 2 * NAME_BYTES]
        if name.strip(b"0123456789abcdef") or not _line(digest, name).startswith(incomplete):
            raise self._damaged()
        return digest, len(content) - len(incomplete)

    def _damaged(self) -> ConfigError:
        return ConfigError(
            f"the file of used preprocessing chunks {self._path} is damaged",
            "restore a backup, or move the file away together with all preprocessing (--ahead), which is then "
            "generated again",
            code="SVFL-FILE-DAMAGED",
            path=str(self._path),
        )

    @contextmanager
    def _locked(self) -> Iterator[int | None]:
        """Lock the file against other processes, and yield its file descriptor; None without a file."""
        if self._path is None:
            yield None
            return
        make_private_folder(self._path.parent)
        file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            lock_exclusive(file)  # the operating system releases it when the process ends
            yield file
        finally:
            os.close(file)


def _line(digest: Digest, name: bytes) -> bytes:
    """Return the line for a name in hexadecimal, without the newline; `digest` has read all earlier lines."""
    extended = digest.copy()
    extended.update(name)
    checksum: str = extended.hexdigest()
    return name + b" " + checksum[:16].encode()
