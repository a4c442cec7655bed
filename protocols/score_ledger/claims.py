"""Claims on rows: while a session computes scores of rows, other sessions and processes wait for these rows.

The score ledger, in which a party records the scores of its rows, stores the name of a claim with each row that is
being scored. The name is random. If the ledger is a file, each claim is a file too, which its process keeps locked. The
lock ends with the process, even if it is killed, and so does the claim.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from securevfl.base.descriptor_reserve import RESERVE
from securevfl.base.platform_files import lock_exclusive


class RowClaims:
    """The claims of one ledger.

    Args:
        folder: folder of the claim files; None if only this object uses the ledger.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._active: set[str] = set()  # names of current claims; unused if there is a folder

    @contextmanager
    def claim(self) -> Iterator[str]:
        """Yield the name of a new claim, which ends with the `with` block, or with this process."""
        name = os.urandom(16).hex()
        if self._folder is None:
            self._active.add(name)
            try:
                yield name
            finally:
                self._active.discard(name)
            return
        path = self._folder / name
        with RESERVE.lent():
            self._folder.mkdir(mode=0o700, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            lock_exclusive(file)  # the operating system releases it when the process ends
            yield name
        finally:
            path.unlink(missing_ok=True)
            os.close(file)

    def is_active(self, claim: str) -> bool:
        """Return whether a session still scores rows under this claim."""
        if self._folder is None:
            return claim in self._active
        path = self._folder / claim
        try:
            with RESERVE.lent():
                file = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            lock_exclusive(file, wait=False)
        except BlockingIOError:
            return True
        else:
            path.unlink(missing_ok=True)  # the process of the claim was killed
            return False
        finally:
            os.close(file)
