"""Contents of a disclosure ledger's file, and how they are encoded.

The file is JSON after a first line with the schema and a SHA-256 digest of schema and body.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from securevfl.disclosure.counts import Disclosure, Kind
from securevfl.disclosure.limits import Limit
from securevfl.disclosure.row_sets import RowSet
from securevfl.errors import DataError

LEDGER_SCHEMA = "securevfl.ledger/4"
SALT_BYTES = 32


@dataclass(frozen=True)
class KnownTable:
    """A table that runs were about.

    Attributes:
        rows: number of rows; 0 for the unknown table of a training that this ledger has no entry of.
        since: UTC time at which the table was first used.
        members: which rows they are, if known.
    """

    rows: int
    since: str
    members: RowSet | None = None


@dataclass(frozen=True)
class LedgerEntry:
    """One disclosure of one run.

    Attributes:
        table: name of the table (`Register.name`).
        run: the run.
        when: UTC time of the entry.
        disclosure: what the run disclosed.
        session: the session of the run.
    """

    table: str
    run: str
    when: str
    disclosure: Disclosure
    session: str = ""


@dataclass(frozen=True)
class ReservedSession:
    """All that a session would disclose if it ran to its end.

    Attributes:
        lock_name: name of a lock; the reservation lasts while a process holds it.
        entries: the entries.
    """

    lock_name: str
    entries: tuple[LedgerEntry, ...]

    @property
    def session(self) -> tuple[str, str]:
        """The run and its session; empty if nothing would be disclosed."""
        return (self.entries[0].run, self.entries[0].session) if self.entries else ("", "")


@dataclass(frozen=True)
class EarlyAborts:
    """Number of sessions with these peers, and no others, that ended early for a reason that may depend on data."""

    peers: tuple[str, ...]
    count: int


@dataclass(frozen=True)
class LedgerContents:
    """The contents of a party's ledger file.

    Attributes:
        party: the owner.
        salt: key of digests and row tags; other parties cannot compare them.
        limits: limits per peer and table.
        tables: known tables by name.
        entries: what runs have disclosed.
        trusts: peers that the owner trusts to follow the protocol.
        reserved: reservations of running sessions.
        tries: early aborts.
    """

    party: str
    salt: bytes = field(repr=False)
    limits: dict[Kind, Limit] = field(default_factory=dict)
    tables: dict[str, KnownTable] = field(default_factory=dict)
    entries: tuple[LedgerEntry, ...] = ()
    trusts: tuple[str, ...] = ()
    reserved: tuple[ReservedSession, ...] = ()
    tries: tuple[EarlyAborts, ...] = ()

    @property
    def counted(self) -> tuple[LedgerEntry, ...]:
        """The entries that count: for a reserved session, all that it would disclose instead of its entries so far."""
        sessions = {reservation.session for reservation in self.reserved}
        settled = [entry for entry in self.entries if (entry.run, entry.session) not in sessions]
        return (*settled, *(entry for reservation in self.reserved for entry in reservation.entries))

    @property
    def sets(self) -> dict[str, RowSet]:
        """The row sets of the tables whose rows are known, by name."""
        return {name: known.members for name, known in self.tables.items() if known.members is not None}


_DECODER = msgspec.json.Decoder(LedgerContents)
"""Created on import: two threads that ask msgspec about a type for the first time at once can end the process."""


def encode_contents(contents: LedgerContents) -> bytes:
    """Encode the contents of a ledger as its file."""
    body = msgspec.json.format(msgspec.json.encode(contents), indent=1)
    return f"{LEDGER_SCHEMA} {_checksum(body)}\n".encode() + body


def first_line(data: bytes) -> bytes:
    """Return the first line of a ledger's file, which contains its digest."""
    return data[: data.find(b"\n") + 1]


def _checksum(body: bytes) -> str:
    return hashlib.sha256(LEDGER_SCHEMA.encode() + body).hexdigest()


def read_contents(path: Path) -> LedgerContents:
    """Read a ledger's file.

    Args:
        path: the ledger's file.

    Returns:
        The ledger's contents.

    Raises:
        DataError: if the file is missing, damaged or of another version.
    """
    try:
        head, _, body = path.read_bytes().partition(b"\n")
    except OSError as cause:
        raise DataError(
            f"{path}: the ledger cannot be read ({cause.strerror})",
            "check the path",
            code="SVFL-LEDGER-MISSING",
            path=str(path),
        ) from None
    schema, _, checksum = head.partition(b" ")
    if schema != LEDGER_SCHEMA.encode() and schema.startswith(b"securevfl.ledger/"):
        raise DataError(
            f"{path}: this ledger was written by another version of securevfl",
            "use that version",
            code="SVFL-LEDGER-FOREIGN",
            path=str(path),
        )
    try:
        if schema != LEDGER_SCHEMA.encode() or not hmac.compare_digest(checksum, _checksum(body).encode()):
            raise ValueError
        return _DECODER.decode(body)
    except (ValueError, msgspec.MsgspecError):
        raise DataError(
            f"{path}: the ledger is damaged or was changed by hand",
            "restore a backup, or move the file away; counting then starts again, and earlier disclosures no longer "
            "count",
            code="SVFL-LEDGER-DAMAGED",
            path=str(path),
        ) from None
