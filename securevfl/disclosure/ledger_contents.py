"""Contents of a disclosure ledger's file, and how they are encoded."""

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

SCHEMA = "securevfl.ledger/3"

READS = (SCHEMA, "securevfl.ledger/2", "securevfl.ledger/1")

_BODY_ALONE = (b"securevfl.ledger/2", b"securevfl.ledger/1")  # whose digest is of what follows the first line

SALT_BYTES = 32


@dataclass(frozen=True)
class KnownTable:
    """A table that runs were about: its number of rows, when it was first seen, and which rows they are, if known.

    rows: 0 for what stands for the table of a training that this ledger knows nothing of.
    """

    rows: int
    since: str
    members: RowSet | None = None


@dataclass(frozen=True)
class LedgerEntry:
    """One thing that one run told, at `when` (UTC), about a table (`Register.name`), in one of its sessions."""

    table: str
    run: str
    when: str
    disclosure: Disclosure
    session: str = ""


@dataclass(frozen=True)
class ReservedSession:
    """All that a session would tell if it went to its end, as long as a process holds the lock named by `mark`."""

    mark: str
    entries: tuple[LedgerEntry, ...]

    @property
    def session(self) -> tuple[str, str]:
        """The run and its session; that of no run where nothing would be told."""
        return (self.entries[0].run, self.entries[0].session) if self.entries else ("", "")


@dataclass(frozen=True)
class EarlyAborts:
    """How many conversations with these peers, and no others, ended early for a reason that may follow from data."""

    peers: tuple[str, ...]
    count: int


@dataclass(frozen=True)
class LedgerContents:
    """The contents of a party's ledger file: its salt, limits, tables, entries, reservations and trusted peers."""

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
        """The entries, and in place of those of a session that is reserved all that it would tell."""
        sessions = {each.session for each in self.reserved}
        told = [entry for entry in self.entries if (entry.run, entry.session) not in sessions]
        return (*told, *(entry for each in self.reserved for entry in each.entries))

    @property
    def sets(self) -> dict[str, RowSet]:
        """The row sets of the tables whose rows are known, by the names of these."""
        return {name: known.members for name, known in self.tables.items() if known.members is not None}


# Made here and not at the first use: two threads that ask msgspec about a type at once can end the process.
_BOOKS = msgspec.json.Decoder(LedgerContents)


def encode_contents(book: LedgerContents) -> bytes:
    body = msgspec.json.format(msgspec.json.encode(book), indent=1)
    return f"{SCHEMA} {_checksum(SCHEMA.encode(), body)}\n".encode() + body


def first_line(whole: bytes) -> bytes:
    """Return the first line of a ledger's file, which has its digest."""
    return whole[: whole.find(b"\n") + 1]


def _checksum(schema: bytes, body: bytes) -> str:
    """Return the digest of a ledger's file, of its schema too from the third one on."""
    return hashlib.sha256((b"" if schema in _BODY_ALONE else schema) + body).hexdigest()


def read_contents(path: Path) -> LedgerContents:
    try:
        head, _, body = path.read_bytes().partition(b"\n")
    except OSError as cause:
        raise DataError(f"{path}: a ledger was expected there ({cause.strerror}); check the path") from None
    schema, _, checksum = head.partition(b" ")
    known = schema.decode("ascii", "replace") in READS
    if not known and schema.startswith(b"securevfl.ledger/"):
        raise DataError(f"{path}: a ledger of schema {SCHEMA} was expected, another version wrote this one; use that")
    try:
        if not known or not hmac.compare_digest(checksum, _checksum(schema, body).encode()):
            raise ValueError
        return _BOOKS.decode(body)
    except (ValueError, msgspec.MsgspecError):
        raise DataError(
            f"{path}: a whole ledger was expected, this file is damaged or was changed by hand; put a copy of it back, "
            "or move it away: counting begins anew then, and what was told before is no longer counted"
        ) from None
