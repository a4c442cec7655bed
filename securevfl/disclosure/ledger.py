"""A party's disclosure ledger: what its jobs have told of its data and to whom, counted over all of them.

    ledger = DisclosureLedger("shop.ledger", "shop")
    join(job, shop, "peers.toml", ledger=ledger)

No single job tells much; many on one table do (`securevfl.disclosure.counts`). So every party keeps a file of its own,
in which each run is entered: what it told whom about this party's labels, columns and scores. Guards count from it, and
so do limits that its owner sets.

1. A run is reserved whole when it is admitted, under one lock with its guards and limits, so that runs at the same time
   come to what they would one after the other. What it tells is entered before the first byte of it leaves, some visits
   ahead at a time. When the run ends, its entries are set to what it came to; when its process dies, what was entered
   counts as told. In either case the reservation is over.
2. Entries go by the run and its sessions: what a training that is taken up again tells anew adds up; by the table,
   which is known by its ids; and by who was told.
3. The ledger keeps which rows each table has (`securevfl.disclosure.row_sets`). What was told about a table counts for
   each other one by the rows that both have: numbers about each row at the row that most was told about, and equations
   and bits against the rows that are shared, as who knows the others needs them for no more. A table whose rows are not
   known, as it has no ids or an earlier version entered it, counts as if it had those of every other.
4. A conversation that ends early for a reason that may follow from data tells a bit by that. It is entered for all who
   were there together, before they are told, and with the same peers there are at most TRIES before the owner looks.
   Peers that meet this party without the one that made them end early have tries of their own.
5. The file is changed under a lock, written whole or not at all, and checked by its digest when it is read. The lock's
   own file holds that digest, so that an older copy which is put back alone is noticed.

It guards against accidents and not against its owner, who can set the limits and remove the file. Nobody else reads it.
It holds no data: names, counts, digests, and a salt that keeps these and the marks of rows from being compared with
another party's.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from securevfl.base.files import write_atomic
from securevfl.data.party import Party
from securevfl.data.register import Register
from securevfl.disclosure.counts import SUM_GROUPS, Disclosure, Kind
from securevfl.disclosure.ledger_contents import (
    SALT_BYTES,
    EarlyAborts,
    KnownTable,
    LedgerContents,
    LedgerEntry,
    ReservedSession,
    encode_contents,
    first_line,
    read_contents,
)
from securevfl.disclosure.limits import DisclosureTotal, Limit, sum_disclosures
from securevfl.disclosure.row_sets import RowSets, TableRows
from securevfl.errors import DataError, LeakageError, StorageError

MAX_EARLY_ABORTS = 64  # conversations with the same peers that may end early before the owner has looked why
_HEAD = 128  # bytes of its first line at most


@dataclass(frozen=True)
class _Table:
    """A table that is looked at: its rows, and which they are, if that is known."""

    name: str
    rows: int
    members: TableRows | None


def default_ledger(party: str) -> Path:
    """Return the path of a party's ledger where none is named: among its user's data, whichever folder a job is in."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "securevfl" / f"{party}.ledger"


class DisclosureLedger:
    """The ledger of one party. Any number of processes may use the file at once.

    reserved: whether what the trainings that are given this object measure is in its file of scores already.

    Methods raise DataError if the file is damaged, another party's, or cannot be read or written.
    """

    def __init__(self, path: str | Path, party: str) -> None:
        """Set the file and the party of a ledger; a file that is not there yet is made when the first run is
        entered."""
        self.path = Path(path)
        self.party = party
        self.reserved = False

    def with_reserved_measurements(self) -> DisclosureLedger:
        """Return the same ledger for trainings whose measurements are entered already."""
        own = DisclosureLedger(self.path, self.party)
        own.reserved = True
        return own

    @property
    def is_empty(self) -> bool:
        """Whether nothing is written in it: no run, limit or trust."""
        book = self.read()
        return not (book.entries or book.limits or book.trusts or book.tries)

    @property
    def scores_path(self) -> Path:
        """The file beside it of what was scored with this party's columns, row by row, where a method keeps one."""
        return self.path.with_name(f"{self.path.name}.scores")

    @property
    def rows_path(self) -> Path:
        """The folder beside it of which rows each table has."""
        return self.path.with_name(f"{self.path.name}.rows")

    @property
    def chunks_path(self) -> Path:
        """The file beside it of the names of work ahead that was gone through."""
        return self.path.with_name(f"{self.path.name}.chunks")

    @classmethod
    def open(cls, party: str, ledger: DisclosureLedger | str | Path | None) -> DisclosureLedger:
        """Return the ledger given, or that of the file given, or by default that of `default_ledger`, once it has been
        read and so can be used."""
        if not isinstance(ledger, DisclosureLedger):
            ledger = cls(default_ledger(party) if ledger is None else ledger, party)
        ledger.read()
        return ledger

    @classmethod
    def find(cls, path: str | Path) -> DisclosureLedger:
        """Open the ledger in a file that is there already, whichever party's it is."""
        return cls(path, read_contents(Path(path)).party)

    @property
    def has_active_session(self) -> bool:
        """Whether a process is in a run that has reserved something."""
        return bool(self._alive(self.read()).reserved)

    def read(self) -> LedgerContents:
        """Read what the file holds; an empty book if it is not there. Raises DataError if it is another party's
        ledger."""
        if not self.path.exists():
            return LedgerContents(self.party, os.urandom(SALT_BYTES))
        book = read_contents(self.path)
        if book.party != self.party:
            raise DataError(f"{self.path}: the ledger of {self.party} was expected, it is {book.party}'s; name another")
        return book

    def table_tag(self, party: Party) -> str:
        """32 hex digits that peers know this party's columns by: the same in all its jobs while these are the same.

        They mean nothing elsewhere, and are others after the ledger is lost.
        """
        return self.pseudonym(f"{party.register.name} {party.content}".encode())

    def pseudonym(self, content: bytes) -> str:
        """32 hex digits that stand for this content in this ledger."""
        with self._changing() as change:
            salt = change.book.salt
        return hmac.new(salt, content, hashlib.sha256).hexdigest()[:32]

    def forecast(
        self, register: Register, told: Sequence[Disclosure], *, but: str = ""
    ) -> tuple[list[LedgerEntry], list[str]]:
        """Return what runs other than `but` have told about this table, and the reasons why a run that tells this would
        be refused. Nothing is entered."""
        book = self._alive(self.read())
        entries = [entry for entry in book.counted if not but or entry.run != but]
        before = self._counting(book, self._table(book, register), entries)
        return before, self._over(book, before, _entries(register.name, ("", ""), told))

    def counted_for(self, register: Register, *, but: tuple[str, str] = ("", "")) -> list[LedgerEntry]:
        """Return what counts beside a run on this table: entries about it and about tables that share rows with it,
        without those of the run and session `but`."""
        book = self._alive(self.read())
        return self._counting(book, self._table(book, register), _others(book.counted, but))

    def table_disclosures(self, name: str) -> tuple[list[LedgerEntry], dict[str, int]]:
        """Return what counts for a table that the ledger knows, and how many rows it shares with each other one."""
        book = self._alive(self.read())
        table = self._known_table(book, name)
        others = [each for each in book.tables if each != name]
        return self._counting(book, table, book.counted), self._count_shared(book, table, others)

    def check_admission(
        self,
        register: Register,
        session: tuple[str, str],
        told: Sequence[Disclosure],
        check: Callable[[Sequence[LedgerEntry]], object],
    ) -> None:
        """Raise what `record` and `reserve` would raise by now; nothing of it is entered."""
        with self._changing() as change:
            self._admit(change, register, session, told, check)

    def record(
        self,
        register: Register,
        session: tuple[str, str],
        told: Sequence[Disclosure],
        check: Callable[[Sequence[LedgerEntry]], object] = lambda before: None,
    ) -> None:
        """Enters all that a session tells about this table, if what came before lets it. session: the run, and what
        names the session.

        check: called with what counts beside it; what it raises goes through, and nothing is entered. LeakageError if
        it would exceed one of the owner's limits.
        """
        with self._changing() as change:
            self._admit(change, register, session, told, check)
            own = _entries(register.name, session, told)
            change.book = replace(change.book, entries=(*_others(change.book.entries, session), *own))

    def reserve(
        self,
        register: Register,
        session: tuple[str, str],
        told: Sequence[Disclosure],
        check: Callable[[Sequence[LedgerEntry]], object],
        *,
        ahead: Sequence[Disclosure],
    ) -> Reservation:
        """`record` a session that goes on for a while: `told` if it goes to its end, of which `ahead` is entered now.

        All of `told` counts for others as long as the reservation lasts: until it is settled or its process ends.
        """
        with ExitStack() as undo:
            with self._changing() as change:
                self._admit(change, register, session, told, check)
                mark, held = self._hold({each.mark for each in change.book.reserved})
                undo.callback(os.close, held)
                book = change.book
                change.book = replace(
                    book,
                    entries=(*_others(book.entries, session), *_entries(register.name, session, ahead)),
                    reserved=(*book.reserved, ReservedSession(mark, _entries(register.name, session, told))),
                )
            undo.pop_all()
        return Reservation(self, register, session, mark, held, change.book.limits)

    def trust(self, peer: str, *, trusted: bool = True) -> None:
        """Write down that the owner trusts a peer to follow the protocol, or no longer.

        Equations that a trusted peer asks again by an equal plan count once over jobs.
        """
        with self._changing() as change:
            others = tuple(trust for trust in change.book.trusts if trust != peer)
            change.book = replace(change.book, trusts=(*others, peer) if trusted else others)

    def check_early_aborts(self, peers: Collection[str]) -> None:
        """LeakageError if conversations with these peers have ended early so often that no other is begun.

        Each such end may tell one bit of this party's table, so it is called before anything of that is looked at.
        """
        here = tuple(sorted(peers))
        if (so_far := self._tries(self.read(), here)) >= MAX_EARLY_ABORTS:
            raise LeakageError(
                f"party {self.party}: fewer than {MAX_EARLY_ABORTS} conversations with {', '.join(here)} that ended "
                f"early were "
                f"expected, there were {so_far}, and each may tell a bit of your table; see in the log why they did, "
                f"and allow as many again: securevfl ledger --party {self.party} --reset-aborts {here[0]}"
            )

    def record_early_abort(self, peers: Collection[str]) -> None:
        """Enter that a conversation with these peers ends early, for a reason that may follow from this party's data,
        before they learn of it. What others do with the same peers beside them counts apart."""
        here = tuple(sorted(peers))
        with self._changing() as change:
            others = tuple(each for each in change.book.tries if each.peers != here)
            change.book = replace(change.book, tries=(*others, EarlyAborts(here, self._tries(change.book, here) + 1)))

    def reset_early_aborts(self, peer: str) -> None:
        """Forget the conversations with this peer, and others beside it, that ended early."""
        with self._changing() as change:
            change.book = replace(change.book, tries=tuple(t for t in change.book.tries if peer not in t.peers))

    def _tries(self, book: LedgerContents, peers: tuple[str, ...]) -> int:
        return sum(each.count for each in book.tries if each.peers == peers)

    def record_answer(self, training: str, run: str, told: Disclosure) -> None:
        """Enter the scores or ids that a prediction (`run`) tells so far, on the table of the training that made the
        model, in place of what was entered of their kind for it before; nothing if there are none.

        A training is counted under its first try, as one without consent, and its model named by the session that
        trained it: either finds the table.
        """
        with self._changing() as change:
            book = change.book
            trained = (entry.table for entry in book.entries if training in (entry.run, entry.session))
            table = next(trained, f"model {training[:16]}")
            if table not in book.tables:
                book = replace(book, tables=book.tables | {table: KnownTable(0, _now())})
            before = tuple(
                each for each in book.entries if (each.run, each.session, each.disclosure.key) != (run, "", told.key)
            )
            book = replace(book, entries=before)
            own = _entries(table, (run, ""), [told] if told.count else [])
            self._refuse(self._over(book, self._counting(book, self._known_table(book, table), book.counted), own))
            change.book = replace(book, entries=book.entries + own)

    def set_limit(self, kind: Kind, limit: Limit | None) -> None:
        """Lets runs tell each peer no more than this about a table; anything if None."""
        with self._changing() as change:
            others = {each: kept for each, kept in change.book.limits.items() if each != kind}
            change.book = replace(change.book, limits=others if limit is None else others | {kind: limit})

    def _admit(
        self,
        change: _Change,
        register: Register,
        session: tuple[str, str],
        told: Sequence[Disclosure],
        check: Callable[[Sequence[LedgerEntry]], object],
    ) -> None:
        """Check a session against what counts beside it, and have the ledger know its table."""
        table = self._table(change.book, register)
        before = self._counting(change.book, table, _others(change.book.counted, session))
        check(before)
        self._refuse(self._over(change.book, before, _entries(register.name, session, told)))
        change.book = self._entered(change.book, table)

    def _hold(self, beside: Collection[str]) -> tuple[str, int]:
        """Make a lock that falls with this process, and remove those that killed ones left behind; return its name and
        its descriptor. beside: locks of other reservations."""
        mark = os.urandom(16).hex()
        try:
            self._locks.mkdir(mode=0o700, exist_ok=True)
            for left in self._locks.iterdir():
                if left.name not in beside and not self._runs(left.name):
                    left.unlink(missing_ok=True)
            held = os.open(self._locks / mark, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as cause:
            raise StorageError(self._locks / mark, cause) from None
        fcntl.flock(held, fcntl.LOCK_EX)
        return mark, held

    @property
    def _locks(self) -> Path:
        return self.path.with_name(f"{self.path.name}.runs")

    def _alive(self, book: LedgerContents) -> LedgerContents:
        """Return the book without the reservations of processes that have ended."""
        alive = tuple(each for each in book.reserved if self._runs(each.mark))
        return book if len(alive) == len(book.reserved) else replace(book, reserved=alive)

    def _runs(self, mark: str) -> bool:
        """Whether a process holds this lock."""
        try:
            lock = os.open(self._locks / mark, os.O_RDONLY)
        except FileNotFoundError:
            return False
        except OSError as cause:
            raise StorageError(self._locks / mark, cause) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def _table(self, book: LedgerContents, register: Register) -> _Table:
        """Find out which rows a register has, by the places of the ledger's sets."""
        known = book.tables.get(register.name)
        if known is not None and known.members is not None:
            return self._known_table(book, register.name)
        sets = RowSets(self.rows_path, book.salt)
        members = None if register.ids is None else sets.members(register, book.sets)
        return _Table(register.name, register.rows, members)

    def _known_table(self, book: LedgerContents, name: str) -> _Table:
        known = book.tables[name]
        others = any(table != name for table in book.tables)
        members = (
            RowSets(self.rows_path, book.salt).known(name, book.sets) if known.members is not None and others else None
        )
        return _Table(name, known.rows, members)

    def _entered(self, book: LedgerContents, table: _Table) -> LedgerContents:
        """Return the book with this table among those it knows, and its rows on disk if they are known."""
        known = book.tables.get(table.name, KnownTable(table.rows, _now()))
        if known.members is None and table.members is not None:
            known = replace(known, members=RowSets(self.rows_path, book.salt).write(table.name, table.members))
        return replace(book, tables=book.tables | {table.name: known})

    def _count_shared(self, book: LedgerContents, table: _Table, names: Iterable[str]) -> dict[str, int]:
        """Count the rows that a table shares with each of these, as many as can be where they are not known; none with
        those of which it has no row."""
        known = {name: book.tables[name] for name in names}
        sets = {name: each.members for name, each in known.items() if each.members is not None and name != table.name}
        if table.members is None:
            sets = {}
        found = {name: min(each.rows, table.rows) for name, each in known.items() if name not in sets}
        if sets and table.members is not None:
            found |= RowSets(self.rows_path, book.salt).count_shared(table.members, sets)
        return {name: found[name] for name in known if found[name] or name == table.name}

    def _counting(self, book: LedgerContents, table: _Table, entries: Sequence[LedgerEntry]) -> list[LedgerEntry]:
        """Return those of these entries that count for a table, as they count: about rows that it has, and of each kind
        and learner at the row that most was told about."""
        shared = self._count_shared(book, table, dict.fromkeys(entry.table for entry in entries))
        found = [
            replace(entry, disclosure=_against(entry.disclosure, book.tables[entry.table].rows, shared[entry.table]))
            for entry in entries
            if entry.table in shared
        ]
        known = {name: each for name, each in book.sets.items() if name in shared and name != table.name}
        if table.members is None or len(known) < 2:
            return found
        alike: dict[object, list[LedgerEntry]] = {}
        for entry in found:
            if entry.table in known and entry.disclosure.kind in ("labels", "columns"):
                alike.setdefault(_alike(entry.disclosure), []).append(entry)
        if not alike:
            return found
        weights = np.array([_weights(own, list(known)) for own in alike.values()])
        has = RowSets(self.rows_path, book.salt).worst(table.members, known, weights.reshape(-1, len(known)))
        at_worst = {
            each: {name for name, held in zip(known, has[2 * k] | has[2 * k + 1], strict=True) if held}
            for k, each in enumerate(alike)
        }
        return [
            entry
            for entry in found
            if entry.table not in known or entry.table in at_worst.get(_alike(entry.disclosure), known)
        ]

    def _refuse(self, why: Sequence[str]) -> None:
        if why:
            raise LeakageError("\n".join(why))

    def _over(self, book: LedgerContents, before: Sequence[LedgerEntry], own: Sequence[LedgerEntry]) -> list[str]:
        """Return a line for each limit that these entries would exceed."""
        found = []
        for kind, limit in book.limits.items():
            for learner in dict.fromkeys(entry.disclosure.learner for entry in own if entry.disclosure.kind == kind):
                so_far = total_to(before, kind, learner)
                after = total_to([*before, *own], kind, learner)
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
            before = self.read()
            here = self._newest(lock)
            change = _Change(self._alive(before))
            yield change
            if change.book is not before or not self.path.exists():
                whole = encode_contents(change.book)
                self._note(lock, here + first_line(whole))  # whichever of the two a killed process leaves
                write_atomic(self.path, whole)
                self._note(lock, first_line(whole))
            kept = {each.mark for each in change.book.reserved}
            for over in {each.mark for each in before.reserved} - kept:
                (self._locks / over).unlink(missing_ok=True)
        finally:
            os.close(lock)

    def _newest(self, lock: int) -> bytes:
        """Return the first line of the ledger's file, if it is there. DataError if it is not what was last written, as
        the lock's file has it; called with the lock."""
        if not self.path.exists():
            return b""
        with self.path.open("rb") as file:
            here = first_line(file.readline(_HEAD))
        noted = os.pread(lock, 2 * _HEAD, 0)
        if noted and here not in noted.splitlines(keepends=True):
            raise DataError(
                f"{self.path}: the ledger as it was last written was expected, an older copy or another file is there; "
                "put the newest copy back; to go on with what is there, which does not know what was told since, "
                f"remove {self.path.name}.lock"
            )
        return here

    def _note(self, lock: int, lines: bytes) -> None:
        """Note on disk, in the file of the lock, which first lines the ledger may have."""
        try:
            os.pwrite(lock, lines, 0)
            os.ftruncate(lock, len(lines))
            os.fsync(lock)
        except OSError as cause:
            raise StorageError(self.path, cause) from None


class Reservation:
    """The place in a ledger of a session that goes on. It falls to what was entered when it is settled, when its
    process ends, or when nothing refers to it any more."""

    def __init__(
        self,
        ledger: DisclosureLedger,
        register: Register,
        session: tuple[str, str],
        mark: str,
        held: int,
        limits: Mapping[Kind, Limit],
    ) -> None:
        """held: the descriptor of the lock `mark`, which is closed with this object. limits: that it was admitted
        under."""
        self._ledger = ledger
        self._register = register
        self._session = session
        self._mark = mark
        self._limits = limits
        self._let_go = weakref.finalize(self, os.close, held)

    def lease(self, told: Sequence[Disclosure]) -> None:
        """Enter what the session is about to tell, in place of what was entered for it before.

        LeakageError if it would exceed one of the owner's limits: where these have changed since, or where it is more
        than was reserved.
        """
        ledger, own = self._ledger, _entries(self._register.name, self._session, told)
        with ledger._changing() as change:
            book = change.book
            others = tuple(each for each in book.reserved if each.mark != self._mark)
            reserved = next((each.entries for each in book.reserved if each.mark == self._mark), ())
            counts = {each.disclosure.key: each.disclosure.count for each in reserved}
            more = [each for each in own if each.disclosure.count > counts.get(each.disclosure.key, -1)]
            if more or book.limits != self._limits:
                before = ledger._counting(
                    book, ledger._table(book, self._register), _others(book.counted, self._session)
                )
                ledger._refuse(ledger._over(book, before, own))
            passed = {each.disclosure.key for each in more}
            whole = (*(each for each in reserved if each.disclosure.key not in passed), *more)
            change.book = replace(
                book,
                entries=(*_others(book.entries, self._session), *own),
                reserved=(*others, ReservedSession(self._mark, whole)),
            )

    def settle(self, told: Sequence[Disclosure]) -> None:
        """End the reservation: replace the entries of the session by what it told in fact."""
        try:
            with self._ledger._changing() as change:
                book = change.book
                entries = (*_others(book.entries, self._session), *_entries(self._register.name, self._session, told))
                others = tuple(each for each in book.reserved if each.mark != self._mark)
                change.book = replace(book, entries=entries, reserved=others)
        finally:
            self._let_go()


@dataclass
class _Change:
    book: LedgerContents


_LESS = {
    "labels": "use the same batches and columns as before",
    "columns": "run fewer epochs",
    "scores": "evaluate or predict less",
    "ids": "ask about fewer ids",
}


def total_to(entries: Iterable[LedgerEntry], kind: Kind, learner: str) -> DisclosureTotal:
    """Add up what this learner was told of this kind over all entries."""
    return sum_disclosures(
        (entry.run, entry.disclosure)
        for entry in entries
        if (entry.disclosure.kind, entry.disclosure.learner) == (kind, learner)
    )


def _against(told: Disclosure, rows: int, shared: int) -> Disclosure:
    """Return what was told about a table of `rows` rows as it counts against the rows of these that another shares.

    Numbers about each row stay as many. Equations, and bits of all rows, are all taken to be about the shared rows, of
    which they tell everything at most.
    """
    if shared >= rows or not told.capacity or not (told.kind == "labels" or told.group in SUM_GROUPS):
        return told
    return replace(told, capacity=max(1, told.capacity * shared // rows, min(told.count, told.capacity)))


def _alike(told: Disclosure) -> object:
    """Return what it adds up with, row by row."""
    return told.kind, told.learner, told.group in SUM_GROUPS


def _weights(entries: Sequence[LedgerEntry], names: Sequence[str]) -> list[list[float]]:
    """Return the counts and the shares that these entries come to for each table (2 x tables)."""
    totals = [
        sum_disclosures((entry.run, entry.disclosure) for entry in entries if entry.table == name) for name in names
    ]
    return [[each.count for each in totals], [each.share for each in totals]]


def _entries(table: str, session: tuple[str, str], told: Sequence[Disclosure]) -> tuple[LedgerEntry, ...]:
    run, session_id = session
    return tuple(LedgerEntry(table, run, _now(), each, session_id) for each in told)


def _others(entries: Iterable[LedgerEntry], session: tuple[str, str]) -> tuple[LedgerEntry, ...]:
    """All entries but those of this session."""
    return tuple(entry for entry in entries if (entry.run, entry.session) != session)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
