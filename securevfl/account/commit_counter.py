"""The last commit of an account, stored in a second place, so that an older copy of the account's file is noticed.

A restored backup, a copy that is used twice, and an exchanged file all lack later disclosures. The *counter* is in
another folder, by default in the user's state folder (`SECUREVFL_STATE` names another). A *state* is a random number of
16 bytes that each commit changes. Before a commit the counter is flushed to disk with the state before, the state
after, and the change itself. When the file is opened:
1. It has the state after the change: the commit was completed.
2. It has the state before the change, because the process ended: the change is carried out now, to be safe.
3. It has another state, or the counter is missing: the file is an older copy or another file, and is refused.

The counter has two *slots*, written in turn, so that an interrupted write leaves the other one. Nothing detects that
file and counter are restored together, as by a snapshot of the whole machine.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path
from typing import Any

import msgspec

from securevfl.base.files import make_private_folder, sync_folder
from securevfl.errors import StorageError

STATE_BYTES = 16
_DIGEST_BYTES = 32

Value = bytes | str | int | float | None
Statement = tuple[str, list[tuple[Value, ...]]]
"""An SQL statement, and the parameters of each of its executions."""


class CommitRecord(msgspec.Struct, frozen=True, array_like=True):
    """One record of the counter.

    Attributes:
        number: number of the record; it grows by one with each record.
        state: the state of the file before the pending commit; its present state if no commit is pending.
        pending: the state of the file after the pending commit; empty if no commit is pending.
        changes: the SQL statements of the pending commit; empty for a commit that need not be repeated.
        seal: SHA-256 of the file in this state, written when a process closes the file; empty until then.
    """

    number: int
    state: bytes
    pending: bytes = b""
    changes: list[Any] = msgspec.field(default_factory=list)  # `Statement`s; msgspec cannot decode that type
    seal: bytes = b""


_DECODER = msgspec.msgpack.Decoder(CommitRecord)
_ENCODER = msgspec.msgpack.Encoder()


def state_folder() -> Path:
    """Return the folder of commit counters: `SECUREVFL_STATE`, or `securevfl` in the user's state folder."""
    if named := os.environ.get("SECUREVFL_STATE"):
        return Path(named)
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "securevfl"


def shared_disk_warning(account: Path) -> str | None:
    """Check whether an account and its commit counter are on one filesystem.

    One restored backup or snapshot of that filesystem contains both in the same older state, which nothing notices.

    Args:
        account: the account's file, which need not exist yet.

    Returns:
        A warning if both are on one filesystem; None otherwise.
    """
    folder = state_folder()
    if _device(account.parent) != _device(folder):
        return None
    return (
        f"the ledger {account} and its commit counter in {folder} are on one filesystem, so a restored backup of it "
        "would go unnoticed; name a folder on another disk in SECUREVFL_STATE"
    )


def _device(folder: Path) -> int:
    """Return the number of the filesystem on which a folder is, or would be created."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return folder.stat().st_dev


class CommitCounter:
    """The commit counter of one account. Only the process that holds the account's write lock may use it.

    Args:
        account: random identifier of the account, in hexadecimal.
    """

    def __init__(self, account: str) -> None:
        self.folder = state_folder()
        self._slots = [self.folder / f"{account}.{slot}" for slot in range(2)]

    def read(self) -> CommitRecord | None:
        """Return the newest record, or None without one; raise StorageError if a slot exists and cannot be read."""
        records = [record for slot in self._slots if (record := _read_slot(slot)) is not None]
        return max(records, key=lambda record: record.number, default=None)

    def write(self, record: CommitRecord) -> None:
        """Write a record to the slot of its number; it is on disk when this method returns.

        Args:
            record: the number of the commit, and the states before and after it.

        Raises:
            StorageError: if it cannot be written.
        """
        path = self._slots[record.number % 2]
        body = _ENCODER.encode(record)
        try:
            new = not path.exists()
            if new:
                make_private_folder(self.folder)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(hashlib.sha256(body).digest() + body)
                file.flush()
                os.fsync(descriptor)
            if new:
                sync_folder(self.folder)
        except OSError as cause:
            raise StorageError(path, cause) from None


def _read_slot(path: Path) -> CommitRecord | None:
    """Return the record of a slot; None if there is none, or if its write was interrupted."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as cause:
        raise StorageError(path, cause) from None
    digest, body = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if not hmac.compare_digest(digest, hashlib.sha256(body).digest()):
        return None
    try:
        return _DECODER.decode(body)
    except msgspec.MsgspecError:
        return None
