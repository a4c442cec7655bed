"""Contents of a disclosure ledger as data, and their storage in the ledger's file.

A disclosure ledger lists what all runs (trainings and predictions) have disclosed of its owner's data
(`securevfl.disclosure.ledger`). A run has one session, or several if it is interrupted and resumed. A running session
has a reservation: the list of everything that it would disclose if it ran to its end.

The file is an SQLite database. It has one row for each *fact*, such as one disclosure or one limit: the name of a
*section*, which is a field of `LedgerContents`, and the fact as JSON.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path

import msgspec

from securevfl.account.database import Tables
from securevfl.disclosure.counts import Disclosure, Kind
from securevfl.disclosure.limits import Limit
from securevfl.disclosure.row_sets import RowSet
from securevfl.errors import DataError

LEDGER_TABLES = """
CREATE TABLE IF NOT EXISTS ledger (number INTEGER PRIMARY KEY, section TEXT NOT NULL, item TEXT NOT NULL);
"""


@dataclass(frozen=True)
class KnownTable:
    """A table of the ledger's owner that was used in runs.

    Attributes:
        rows: number of rows; 0 if it is unknown, because predictions were entered and their training was not.
        since: UTC time of the first use of the table.
        members: the stored set of the table's rows; None if it has no ids.
    """

    rows: int
    since: str
    members: RowSet | None = None


@dataclass(frozen=True)
class LedgerEntry:
    """One disclosure of one run, with its table and time.

    Attributes:
        table: name of the table (`Register.name`).
        run: name of the run.
        when: UTC time of the entry.
        disclosure: what the run disclosed.
        session: name of the session of the run that disclosed it.
    """

    table: str
    run: str
    when: str
    disclosure: Disclosure
    session: str = ""


@dataclass(frozen=True)
class ReservedSession:
    """The reservation of a session: everything that it would disclose if it ran to its end.

    Attributes:
        lock_name: name of a lock file. The session's process holds the lock; the reservation ends with the lock.
        entries: one entry for each disclosure.
    """

    lock_name: str
    entries: tuple[LedgerEntry, ...]

    @property
    def session(self) -> tuple[str, str]:
        """The names of the run and of its session, as its entries state them; two empty strings without entries."""
        return (self.entries[0].run, self.entries[0].session) if self.entries else ("", "")


@dataclass(frozen=True)
class EarlyAborts:
    """How many sessions with exactly these peers ended early for a reason that may depend on data."""

    peers: tuple[str, ...]
    count: int


@dataclass(frozen=True)
class LedgerContents:
    """The contents of a party's ledger file.

    Attributes:
        party: the owner.
        salt: secret key of the digests of rows, so that other parties cannot compare these with their own.
        limits: the owner's limits, by kind of disclosure. Each holds for one table, over all peers.
        tables: known tables by name.
        entries: the disclosures of runs.
        trusts: peers that the owner trusts to follow the protocol, so that repeated equations count once.
        reserved: reservations of running sessions.
        tries: how many sessions ended early for a reason that may depend on data, for each set of peers.
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
        """The entries that count. For a session with a reservation, its reservation replaces its entries so far."""
        sessions = {reservation.session for reservation in self.reserved}
        settled = [entry for entry in self.entries if (entry.run, entry.session) not in sessions]
        return (*settled, *(entry for reservation in self.reserved for entry in reservation.entries))

    @property
    def sets(self) -> dict[str, RowSet]:
        """The rows of each table with ids, by the table's name."""
        return {name: known.members for name, known in self.tables.items() if known.members is not None}


_DECODER = msgspec.json.Decoder(LedgerContents)
"""Created on import, because the process can crash if two threads pass a new type to msgspec at the same time."""
_SECTIONS = tuple(section.name for section in fields(LedgerContents) if section.name not in ("party", "salt"))
_MAPPINGS = ("limits", "tables")


def load_contents(tables: Tables, salt: bytes, path: Path | None) -> LedgerContents | None:
    """Read the contents of a ledger.

    Args:
        tables: the tables of the ledger's file.
        salt: the ledger's salt.
        path: the file, which error messages name.

    Returns:
        The contents; None if the file has no contents yet.

    Raises:
        DataError: if the file is damaged or was changed by hand.
    """
    sections: dict[str, list[str]] = {}
    for section, item in tables.execute("SELECT section, item FROM ledger ORDER BY number"):
        sections.setdefault(section, []).append(item)
    if not sections:
        return None
    try:
        (party,) = sections.pop("party")
        parts = [f'"party":{party}', f'"salt":{msgspec.json.encode(salt).decode()}']
        for section, items in sections.items():
            opening, closing = "{}" if section in _MAPPINGS else "[]"
            parts.append(f'"{section}":{opening}{",".join(items)}{closing}')
        return _DECODER.decode("{" + ",".join(parts) + "}")
    except (KeyError, ValueError, msgspec.MsgspecError):
        raise DataError(
            f"{path}: the ledger is damaged or was changed by hand",
            "restore the newest backup of this file",
            code="SVFL-LEDGER-DAMAGED",
            path=str(path),
        ) from None


def store_contents(tables: Tables, before: LedgerContents | None, after: LedgerContents) -> None:
    """Write new contents to the file; facts that have not changed are not written again.

    Args:
        tables: the tables of the ledger's file, in a transaction.
        before: the present contents; None if there are none.
        after: the new contents.
    """
    present = Counter() if before is None else Counter(_items(before))
    # `after` is encoded and decoded once, so that equal facts have equal JSON (the integer 40 becomes 40.0)
    target = list(_items(_DECODER.decode(msgspec.json.encode(after))))
    removed = present - Counter(target)
    for (section, item), count in removed.items():
        tables.execute(
            "DELETE FROM ledger WHERE number IN (SELECT number FROM ledger WHERE section = ? AND item = ? LIMIT ?)",
            (section, item, count),
        )
    unchanged = present - removed
    for key in target:
        if unchanged[key]:
            unchanged[key] -= 1
        else:
            tables.execute("INSERT INTO ledger (section, item) VALUES (?, ?)", key)


def _items(contents: LedgerContents) -> Iterator[tuple[str, str]]:
    """Yield each fact as the name of its section and its JSON."""
    yield "party", msgspec.json.encode(contents.party).decode()
    for section in _SECTIONS:
        value = getattr(contents, section)
        if section in _MAPPINGS:
            for name, item in value.items():
                yield section, f"{msgspec.json.encode(name).decode()}:{msgspec.json.encode(item).decode()}"
        else:
            for item in value:
                yield section, msgspec.json.encode(item).decode()
