"""A party's disclosure ledger: what its jobs have told of its data and to whom, counted over all of them.

    ledger = DisclosureLedger("shop.ledger", "shop")
    join(job, shop, "peers.toml", ledger=ledger)

No single job tells much; many on one table do (`securevfl.disclosure.counts`). So every party keeps a file of its own,
in which each run is entered: what it told whom about this party's labels, columns and scores. Guards count from it, and
so do limits that its owner sets.

1. What a run tells is entered before the first byte of it leaves, some visits ahead at a time: what was entered and not
   told when a process died counts as told. When the run ends, its entries are set to what it came to.
2. Entries go by the run and its sessions: what a training that is taken up again tells anew adds up; by the table,
   which is known by its ids; and by who was told. Tables that share rows count together (`Register.least` tells, all
   but surely from one row in a hundred on); tables without ids do if they have as many rows.
3. The file is changed under a lock, written whole or not at all, and checked by its digest when it is read.

It guards against accidents and not against its owner, who can set the limits and remove the file. Nobody else reads it.
It holds no data: names, counts, digests, and a salt that keeps these from being compared with another party's.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from securevfl.base.files import write_whole
from securevfl.data.ids import ID_DIGEST
from securevfl.data.party import Party
from securevfl.data.register import Register
from securevfl.disclosure.counts import Disclosure, Kind
from securevfl.disclosure.limits import Limit, ToldTotal, total
from securevfl.errors import DataError, LeakageError

SCHEMA = "securevfl.ledger/2"
READS = (SCHEMA, "securevfl.ledger/1")
SALT_BYTES = 32
_MARK = 8  # bytes that stand for an id


@dataclass(frozen=True)
class KnownTable:
    """A table that runs were about: its number of rows, marks of some of its ids, and when it was first seen."""

    rows: int
    marks: bytes
    since: str


@dataclass(frozen=True)
class LedgerEntry:
    """One thing that one run told, at `when` (UTC), about a table (`Register.name`), in one of its sessions."""

    table: str
    run: str
    when: str
    told: Disclosure
    sitting: str = ""


@dataclass(frozen=True)
class Book:
    """The contents of a party's ledger file: its salt, limits, tables, entries and trusted peers."""

    party: str
    salt: bytes = field(repr=False)
    limits: dict[Kind, Limit] = field(default_factory=dict)
    tables: dict[str, KnownTable] = field(default_factory=dict)
    entries: tuple[LedgerEntry, ...] = ()
    trusts: tuple[str, ...] = ()

    def related(self, table: str) -> set[str]:
        """Return the names of the tables that share rows with this one, itself among them."""
        own = self.tables.get(table)
        mine = _parts(own.marks) if own is not None else set()
        return {table} | {name for name, each in self.tables.items() if mine & _parts(each.marks)}

    def about(self, table: str, *, but: tuple[str, str] = ("", "")) -> list[LedgerEntry]:
        """Return the entries on this table and on those that share rows with it, without those of the run and session
        `but`."""
        names = self.related(table)
        return [entry for entry in self.entries if entry.table in names and (entry.run, entry.sitting) != but]


def default_ledger(party: str) -> Path:
    """Return the path of a party's ledger where none is named: among its user's data, whichever folder a job is in."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "securevfl" / f"{party}.ledger"


class DisclosureLedger:
    """The ledger of one party. Any number of processes may use the file at once.

    Methods raise DataError if the file is damaged, another party's, or cannot be read or written.
    """

    def __init__(self, path: str | Path, party: str) -> None:
        """Set the file and the party of a ledger; a file that is not there yet is made when the first run is
        entered."""
        self.path = Path(path)
        self.party = party

    @property
    def blank(self) -> bool:
        """Whether nothing is written in it: no run, limit or trust."""
        book = self.read()
        return not (book.entries or book.limits or book.trusts)

    @property
    def scores(self) -> Path:
        """The file beside it of what was scored with this party's columns, row by row, where a method keeps one."""
        return self.path.with_name(f"{self.path.name}.scores")

    @property
    def chunks(self) -> Path:
        """The file beside it of the names of work ahead that was gone through."""
        return self.path.with_name(f"{self.path.name}.chunks")

    @classmethod
    def of(cls, party: str, ledger: DisclosureLedger | str | Path | None) -> DisclosureLedger:
        """Return the ledger given, or that of the file given, or by default that of `default_ledger`, once it has been
        read and so can be used."""
        if not isinstance(ledger, DisclosureLedger):
            ledger = cls(default_ledger(party) if ledger is None else ledger, party)
        ledger.read()
        return ledger

    @classmethod
    def find(cls, path: str | Path) -> DisclosureLedger:
        """Open the ledger in a file that is there already, whichever party's it is."""
        return cls(path, _read(Path(path)).party)

    def read(self) -> Book:
        """Read what the file holds; an empty book if it is not there. Raises DataError if it is another party's
        ledger."""
        if not self.path.exists():
            return Book(self.party, os.urandom(SALT_BYTES))
        book = _read(self.path)
        if book.party != self.party:
            raise DataError(f"{self.path}: the ledger of {self.party} was expected, it is {book.party}'s; name another")
        return book

    def tag(self, party: Party) -> str:
        """32 hex digits that peers know this party's columns by: the same in all its jobs while these are the same.

        They mean nothing elsewhere, and are others after the ledger is lost.
        """
        return self.named(f"{party.register.name} {party.content}".encode())

    def named(self, content: bytes) -> str:
        """32 hex digits that stand for this content in this ledger."""
        with self._changing() as change:
            salt = change.book.salt
        return hmac.new(salt, content, hashlib.sha256).hexdigest()[:32]

    def foresee(
        self, register: Register, told: Sequence[Disclosure], *, but: str = ""
    ) -> tuple[list[LedgerEntry], list[str]]:
        """Return what runs other than `but` have told about this table, and the reasons why a run that tells this would
        be refused. Nothing is entered."""
        book = _entered(self.read(), register)
        before = [entry for entry in book.about(register.name) if not but or entry.run != but]
        return before, self._over(book, before, _entries(register.name, ("", ""), told))

    def book(
        self,
        register: Register,
        sitting: tuple[str, str],
        told: Sequence[Disclosure],
        check: Callable[[Sequence[LedgerEntry]], object] = lambda before: None,
        *,
        ahead: Sequence[Disclosure] | None = None,
    ) -> None:
        """Enters a session on this table, if what came before lets it. sitting: the run, and what names the session.

        told: what the session tells about this party if it goes to its end. ahead: so much of it is entered now, all if
        None. check: called with what was entered before; what it raises goes through, and nothing is entered.
        LeakageError if the whole would exceed one of the owner's limits.
        """
        with self._changing() as change:
            book = _entered(change.book, register)
            before = book.about(register.name, but=sitting)
            check(before)
            self._refuse(self._over(book, before, _entries(register.name, sitting, told)))
            own = _entries(register.name, sitting, told if ahead is None else ahead)
            change.book = replace(book, entries=(*_others(book, sitting), *own))

    def lease(self, register: Register, sitting: tuple[str, str], told: Sequence[Disclosure]) -> None:
        """Enter what a session is about to tell, in place of what was entered for it before.

        LeakageError if it would exceed one of the owner's limits.
        """
        self.book(register, sitting, told)

    def settle(self, sitting: tuple[str, str], told: Sequence[Disclosure]) -> None:
        """Replace the entries of a session that has ended by what it told in fact."""
        with self._changing() as change:
            entries = change.book.entries
            table = next((entry.table for entry in entries if (entry.run, entry.sitting) == sitting), None)
            if table is not None:
                change.book = replace(
                    change.book, entries=_others(change.book, sitting) + _entries(table, sitting, told)
                )

    def trust(self, peer: str, *, trusted: bool = True) -> None:
        """Write down that the owner trusts a peer to follow the protocol, or no longer.

        Equations that a trusted peer asks again by an equal plan count once over jobs.
        """
        with self._changing() as change:
            others = tuple(each for each in change.book.trusts if each != peer)
            change.book = replace(change.book, trusts=(*others, peer) if trusted else others)

    def answer(self, training: str, run: str, told: Disclosure) -> None:
        """Enters scores or ids that a prediction (`run`) tells, on the table of the training that made the model."""
        with self._changing() as change:
            book = change.book
            table = next((entry.table for entry in book.entries if entry.run == training), f"model {training[:16]}")
            if table not in book.tables:
                book = replace(book, tables=book.tables | {table: KnownTable(0, b"", _now())})
            own = _entries(table, (run, ""), [told])
            self._refuse(self._over(book, book.about(table), own))
            change.book = replace(book, entries=book.entries + own)

    def set_limit(self, kind: Kind, limit: Limit | None) -> None:
        """Lets runs tell each peer no more than this about a table; anything if None."""
        with self._changing() as change:
            others = {each: kept for each, kept in change.book.limits.items() if each != kind}
            change.book = replace(change.book, limits=others if limit is None else others | {kind: limit})

    def _refuse(self, why: Sequence[str]) -> None:
        if why:
            raise LeakageError("\n".join(why))

    def _over(self, book: Book, before: Sequence[LedgerEntry], own: Sequence[LedgerEntry]) -> list[str]:
        """Return a line for each limit that these entries would exceed."""
        found = []
        for kind, limit in book.limits.items():
            for learner in dict.fromkeys(entry.told.learner for entry in own if entry.told.kind == kind):
                so_far = told_to(before, kind, learner)
                after = told_to([*before, *own], kind, learner)
                if limit.allows(after) or not after.exceeds(so_far):
                    continue
                found.append(
                    f"party {self.party}: its ledger lets {learner} be told {limit.of(kind)} at most, "
                    f"{so_far.of(kind)} were told before, with this run it would be {after.of(kind)}; "
                    f"{_LESS[kind]}, or raise the limit: "
                    f"securevfl ledger --party {self.party} --limit {kind}={limit.needed(after)}"
                )
        return found

    @contextmanager
    def _changing(self) -> Iterator[_Change]:
        """Hold the file's lock and hand out the book; write it at the end if the block has changed it, or if there was
        no file."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self.path.with_name(f"{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as cause:
            raise DataError(f"{self.path}: a place to keep the ledger was expected ({cause.strerror})") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # falls with the process
            change = _Change(self.read())
            before = change.book
            yield change
            if change.book is not before or not self.path.exists():
                _write(self.path, change.book)
        finally:
            os.close(lock)


@dataclass
class _Change:
    book: Book


_LESS = {
    "labels": "use the same batches and columns as before",
    "columns": "run fewer epochs",
    "scores": "evaluate or predict less",
    "ids": "ask about fewer ids",
}


def told_to(entries: Iterable[LedgerEntry], kind: Kind, learner: str) -> ToldTotal:
    """Add up what this learner was told of this kind over all entries."""
    return total(
        (entry.run, entry.told) for entry in entries if (entry.told.kind, entry.told.learner) == (kind, learner)
    )


def _entered(book: Book, register: Register) -> Book:
    """Return the book with this table among those it knows."""
    if register.name in book.tables:
        return book
    ids = [register.least[at : at + ID_DIGEST] for at in range(0, len(register.least), ID_DIGEST)]
    marks = b"".join(hmac.digest(book.salt, each, "sha256")[:_MARK] for each in ids)
    return replace(book, tables=book.tables | {register.name: KnownTable(register.rows, marks, _now())})


def _parts(marks: bytes) -> set[bytes]:
    return {marks[at : at + _MARK] for at in range(0, len(marks), _MARK)}


def _entries(table: str, sitting: tuple[str, str], told: Sequence[Disclosure]) -> tuple[LedgerEntry, ...]:
    run, session = sitting
    return tuple(LedgerEntry(table, run, _now(), each, session) for each in told)


def _others(book: Book, sitting: tuple[str, str]) -> tuple[LedgerEntry, ...]:
    """All entries but those of this session."""
    return tuple(entry for entry in book.entries if (entry.run, entry.sitting) != sitting)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _write(path: Path, book: Book) -> None:
    body = msgspec.json.format(msgspec.json.encode(book), indent=1)
    write_whole(path, f"{SCHEMA} {hashlib.sha256(body).hexdigest()}\n".encode() + body)


def _read(path: Path) -> Book:
    try:
        head, _, body = path.read_bytes().partition(b"\n")
    except OSError as cause:
        raise DataError(f"{path}: a ledger was expected there ({cause.strerror}); check the path") from None
    schema, _, checksum = head.partition(b" ")
    known = schema.decode("ascii", "replace") in READS
    if not known and schema.startswith(b"securevfl.ledger/"):
        raise DataError(f"{path}: a ledger of schema {SCHEMA} was expected, another version wrote this one; use that")
    try:
        if not known or not hmac.compare_digest(checksum, hashlib.sha256(body).hexdigest().encode()):
            raise ValueError
        return msgspec.json.decode(body, type=Book)
    except (ValueError, msgspec.MsgspecError):
        raise DataError(
            f"{path}: a whole ledger was expected, this file is damaged or was changed by hand; put a copy of it back, "
            "or move it away: counting begins anew then, and what was told before is no longer counted"
        ) from None
