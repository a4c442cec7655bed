"""A file with an integrity seal: the last process to close it stores a digest, and the next one verifies it.

The seal is a second file, `NAME.seal`. While no process uses the file, the seal contains the SHA-256 digest of the
whole file, so that a flipped bit, a truncated end or an older copy is detected before the file is used. While a process
uses the file, the seal contains no digest. If such a process is killed, the next one finds no digest, and must check
the file by other means. Every process that uses the file has a shared lock on the seal, which the operating system
releases when the process ends.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from contextlib import suppress
from pathlib import Path

from securevfl.base.checked_files import DamagedFileError
from securevfl.base.platform_files import lock_exclusive, lock_shared, read_at, write_at
from securevfl.errors import StorageError

_IN_USE = b"in use\n"
_SEAL_BYTES = 65  # a digest in hexadecimal and a newline
_READ_BYTES = 1 << 16


class SealedFile:
    """The seal of an existing file while this process uses the file. The constructor verifies the digest.

    Args:
        path: the file.

    Attributes:
        left: True if the digest was verified; False if there was none, because the last process that used the file was
            killed.

    Raises:
        DamagedFileError: the file differs from the one that was sealed.
        StorageError: the seal cannot be read or written.
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
        """End the use of the file, which must be closed. The last process that uses it stores a digest in the seal."""
        # If this fails (unreadable file, full disk), the seal has no digest, and the next process checks the content.
        with suppress(OSError):
            lock_exclusive(self._lock, wait=False)
            self._write(_seal_of(self._path))
        os.close(self._lock)

    def drop(self) -> None:
        """End the use of the file without storing its digest, because its content is unusable."""
        os.close(self._lock)

    def _begin(self) -> bool:
        """Verify the digest in the seal, replace it by a mark "in use", and take the shared lock.

        Returns:
            True if the digest was verified, by this process or by another one that uses the file; False if there was
            none.
        """
        try:
            lock_exclusive(self._lock, wait=False)
        except BlockingIOError:  # another process uses the file, and has verified it
            lock_shared(self._lock)
            return True
        seal = read_at(self._lock, 128, 0)
        complete = len(seal) == _SEAL_BYTES  # shorter if the file was in use, or if a full disk truncated the seal
        if complete and not hmac.compare_digest(seal, _seal_of(self._path)):
            raise DamagedFileError
        self._write(_IN_USE)
        lock_shared(self._lock)
        return complete

    def _write(self, content: bytes) -> None:
        """Replace the content of the seal, and flush it to disk."""
        os.ftruncate(self._lock, 0)
        write_at(self._lock, content, 0)
        os.fsync(self._lock)


def _seal_of(path: Path) -> bytes:
    """Return the seal of a file: its SHA-256 digest in hexadecimal, and a newline."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(_READ_BYTES):
            digest.update(block)
    return f"{digest.hexdigest()}\n".encode()
