"""A file that processes change in place, and that is found again as the last of them left it.

Beside it lies its seal: the digest of the whole file, as long as nobody uses it, written by the last that did. So a
bit that a disk has lost, an end that was cut off, or an older copy that was put back alone, is noticed before it is
used. While somebody uses the file, and after that process was killed, there is no digest to go by; whoever comes next
is told so, to look by other means. Readers and writers hold a lock on the seal, which falls with their process.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
from contextlib import suppress
from pathlib import Path

from securevfl.base.checked_files import DamagedFileError
from securevfl.errors import StorageError

_IN_USE = b"in use\n"

_SEALED = 65  # bytes of a digest in hex, and the end of its line

_PIECE = 1 << 16  # bytes that are read and digested at a time


class SealedFile:
    """This process's use of the file at `path`, which is there, until `close`.

    left: whether it was left in order; if not, its digest is not known. DamagedFileError if it is not as it was left,
    StorageError if the seal cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        seal = path.with_name(f"{path.name}.seal")
        try:
            self._lock = os.open(seal, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as cause:
            raise StorageError(seal, cause) from None
        try:
            self.left = self._begin()
        except OSError as cause:
            os.close(self._lock)
            raise StorageError(seal, cause) from None
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """End the use, once the file is closed: the last to do so notes what it leaves."""
        with suppress(OSError):  # of a file that cannot be read, or a full disk: what comes next looks by other means
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._write(_digest_of_file(self._path))
        os.close(self._lock)

    def drop(self) -> None:
        """End the use of a file that turned out to be none, and leave its seal open."""
        os.close(self._lock)

    def _begin(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # others use it, and have looked
            fcntl.flock(self._lock, fcntl.LOCK_SH)
            return True
        sealed = os.pread(self._lock, 128, 0)
        left = len(sealed) == _SEALED  # a full disk may have taken a part of it
        if left and not hmac.compare_digest(sealed, _digest_of_file(self._path)):
            raise DamagedFileError
        self._write(_IN_USE)
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        return left

    def _write(self, what: bytes) -> None:
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, what, 0)
        os.fsync(self._lock)


def _digest_of_file(path: Path) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return f"{digest.hexdigest()}\n".encode()
