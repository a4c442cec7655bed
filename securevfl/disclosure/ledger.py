"""A party's disclosure ledger: a file that lists what all runs have disclosed of this party's data, and to which party.

    ledger = DisclosureLedger("shop.ledger", "shop")
    join(job, shop, "peers.toml", ledger=ledger)

Terms: a *run* is one training or prediction. It has one *session*, or several if it is interrupted and resumed. An
*entry* is one disclosure of a run to a *learner*, about the owner's labels, columns, scores or ids. Its *capacity* is
the amount that would disclose everything. A *reservation* is the list of everything that a running session would
disclose if it ran to its end.

1. A session is admitted if its leak checks and the owner's limits allow its reservation. The session enters disclosures
   before it sends them, for some iterations in advance. At its end, its actual disclosures replace these entries.
2. Limits apply to one table (identified by its ids) and to all learners together, because they may pool what they know.
3. Disclosures about one table also count for tables that share rows with it (`securevfl.disclosure.row_sets`).
4. An *early abort* is a session that ended early for a reason that may depend on data. It discloses one bit; at most
   `MAX_EARLY_ABORTS` are allowed.
5. The file is the party's account (`securevfl.account`), which detects that an older copy of it was restored. It
   contains no data: only names, counts, digests, and a *salt*, the secret key of these digests. It protects the owner
   against its peers; it does not bind the owner.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from securevfl.account.database import AccountDatabase, Tables
from securevfl.account.process_locks import ProcessLocks
from securevfl.crypto.key_derivation import derive_key
from securevfl.data.party import Party
from securevfl.data.register import Register
from securevfl.disclosure.counts import SUM_GROUPS, Disclosure, Kind
from securevfl.disclosure.ledger_contents import (
    LEDGER_TABLES,
    EarlyAborts,
    KnownTable,
    LedgerContents,
    LedgerEntry,
    ReservedSession,
    load_contents,
    store_contents,
)
from securevfl.disclosure.limits import DISCLOSURE_KINDS, KIND_TOTALS, DisclosureTotal, Limit, sum_disclosures
from securevfl.disclosure.row_sets import ROW_SET_TABLES, RowSets, TableRows
from securevfl.errors import AnswerLimitError, DataError, LeakageError
from securevfl.protocols.alignment.journal_folder import discard_journals
from securevfl.protocols.score_ledger.tables import use_up_everything

MAX_EARLY_ABORTS = 64
"""Maximum number of early aborts, over all peers, until the owner has checked the reason."""
ANYBODY = "anybody"
"""Name of the learner in entries that stand for everything that an older copy of the ledger may lack (`adopt`)."""
ADOPTED_COUNT = 1_000_000_000
"""Count and capacity of the entries of an adopted older copy; larger than any usual limit."""
_ALL_ROWS = 1 << 60  # stands for the number of rows of a table of unknown size; larger than any table
_SALT_BYTES = 32

SessionKey = tuple[str, str]
"""Name of a run and name of one of its sessions."""
AdmissionCheck = Callable[[Sequence[LedgerEntry]], object]
"""A function that raises an error if a session must not run, given the earlier entries that count for it."""


@dataclass(frozen=True)
class _Table:
    """A table while it is compared with others: its name, its number of rows, and its rows (None if it has no ids)."""

    name: str
    rows: int
    members: TableRows | None


def default_ledger(party: str) -> Path:
    """Return the default path of a party's ledger, in the user's data folder."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "securevfl" / f"{party}.ledger"


class DisclosureLedger:
    """The ledger of one party. Any number of processes may use the file concurrently.

    Methods raise DataError if the file is damaged, belongs to another party or cannot be read or written.

    Args:
        path: the file. It is created when the first run is entered.
        party: the owner.
        leased_iterations: number of iterations whose disclosures are entered in advance. A smaller number leaves fewer
            entries without a disclosure if the process is killed, but the ledger is written more often. By default as
            many iterations as take half a second, and at least 16.

    Attributes:
        path: the file.
        party: the owner.
        leased_iterations: number of iterations whose disclosures are entered in advance.
        use_reserved_measurement: a *measurement* is one evaluation of a model on the held-out rows. The score ledger
            (`securevfl.protocols.score_ledger`) counts them, one by one if this is None. If it has counted several in
            advance, trainings with this object call this function before each measurement.
    """

    def __init__(self, path: str | Path, party: str, leased_iterations: int | None = None) -> None:
        self.path = Path(path)
        self.party = party
        self.leased_iterations = leased_iterations
        self.use_reserved_measurement: Callable[[], None] | None = None
        self._file: AccountDatabase | None = None
        self._locks = ProcessLocks(self.path.with_name(f"{self.path.name}.locks"))

    def with_reserved_measurements(self, use_one: Callable[[], None]) -> DisclosureLedger:
        """Return the same ledger for trainings whose measurements the score ledger has already counted.

        Args:
            use_one: function to call before each measurement; see `use_reserved_measurement`.

        Returns:
            The ledger.
        """
        ledger = DisclosureLedger(self.path, self.party, self.leased_iterations)
        ledger.use_reserved_measurement = use_one
        return ledger

    @property
    def is_empty(self) -> bool:
        """Whether the ledger has no run, no limit, no trusted peer and no early abort."""
        contents = self.read()
        return not (contents.entries or contents.limits or contents.trusts or contents.tries)

    @property
    def database(self) -> AccountDatabase:
        """The ledger's file. It is created if it does not exist."""
        if self._file is None or not self.path.exists():
            self._file = None
            self._file = AccountDatabase.shared(self.path, LEDGER_TABLES + ROW_SET_TABLES)
        return self._file

    @classmethod
    def open(cls, party: str, ledger: DisclosureLedger | str | Path | None) -> DisclosureLedger:
        """Open the ledger of a party.

        Args:
            party: the owner.
            ledger: a ledger, which is returned unchanged; the path of its file; or None for `default_ledger`.

        Returns:
            The ledger.
        """
        if not isinstance(ledger, DisclosureLedger):
            ledger = cls(default_ledger(party) if ledger is None else ledger, party)
        ledger.read()
        return ledger

    @classmethod
    def find(cls, path: str | Path) -> DisclosureLedger:
        """Open an existing ledger. The name of its owner is read from the file.

        Args:
            path: the file.

        Returns:
            The ledger.

        Raises:
            DataError: if the file is missing, damaged or no ledger.
        """
        ledger = cls._existing(path)
        ledger.party = ledger._entered(ledger._load()).party
        return ledger

    @classmethod
    def _existing(cls, path: str | Path) -> DisclosureLedger:
        """Return the ledger of an existing file; its owner's name is not read yet. Raise DataError if it is missing."""
        if not Path(path).exists():
            raise DataError(f"{path}: there is no ledger", "check the path", code="SVFL-LEDGER-MISSING", path=str(path))
        return cls(path, "")

    def _entered(self, contents: LedgerContents | None) -> LedgerContents:
        """Return the contents that were read from the file; raise DataError if the file is no ledger (None)."""
        if contents is None:
            raise DataError(
                f"{self.path}: this file is not a disclosure ledger",
                "name the ledger",
                code="SVFL-LEDGER-FOREIGN",
                path=str(self.path),
            )
        return contents

    @classmethod
    def adopt(cls, path: str | Path) -> DisclosureLedger:
        """Continue with an older copy of a ledger, or with a ledger whose commit counter is lost.

        The commit counter is a small file in another folder, by which older copies are detected
        (`securevfl.account.commit_counter`). Nobody knows which disclosures an older copy lacks. Therefore everything
        about every table that was used so far counts as disclosed to every peer, and no more scores are disclosed by
        models that were trained so far.

        Args:
            path: the file.

        Returns:
            The ledger, which counts as the newest copy from now on.

        Raises:
            DataError: if the file is missing, damaged or no ledger.
        """
        ledger = cls._existing(path)
        ledger._file = AccountDatabase.shared(ledger.path, adopt=True)
        with ledger._file.changing() as tables:
            stored = ledger._entered(load_contents(tables, ledger._salt, ledger.path))
            ledger.party = stored.party
            table = f"everything before {_now()}"
            used_up = [
                Disclosure(kind, ANYBODY, (stored.party,), ADOPTED_COUNT, ADOPTED_COUNT if kind in KIND_TOTALS else 0)
                for kind in DISCLOSURE_KINDS
            ]
            contents = replace(
                stored,
                tables=stored.tables | {table: KnownTable(_ALL_ROWS, _now())},
                entries=(*stored.entries, *_entries(table, ("adopted", ""), used_up)),
                reserved=(),
            )
            store_contents(tables, stored, contents)
            use_up_everything(tables)
            discard_journals(tables)
        ledger._file.create_tables(LEDGER_TABLES + ROW_SET_TABLES)
        return ledger

    @property
    def has_active_session(self) -> bool:
        """Whether a running process (of this computer) has a session with a reservation in this ledger."""
        return bool(self._without_dead_sessions(self.read()).reserved)

    def read(self) -> LedgerContents:
        """Read the contents; empty contents if the file does not exist.

        Returns:
            The ledger's contents.

        Raises:
            DataError: if the file is another party's ledger, or cannot be read.
        """
        contents = self._load() if self.path.exists() else None
        return LedgerContents(self.party, os.urandom(_SALT_BYTES)) if contents is None else self._checked(contents)

    def _load(self) -> LedgerContents | None:
        with self.database.changing() as tables:  # an exclusive change, so that an older copy of the file is refused
            return load_contents(tables, self._salt, self.path)

    @property
    def _salt(self) -> bytes:
        return derive_key(self.database.key, "salt of a disclosure ledger")

    def _checked(self, contents: LedgerContents) -> LedgerContents:
        """Return the contents unchanged. Raises DataError if they belong to another party than this ledger's owner."""
        if contents.party != self.party:
            raise DataError(
                f"{self.path}: this is the ledger of {contents.party}, not of {self.party}",
                "name another file",
                code="SVFL-LEDGER-FOREIGN",
                path=str(self.path),
            )
        return contents

    def table_tag(self, party: Party) -> str:
        """Return 32 hex digits from which peers see, in later jobs, whether this party's columns are still the same.

        The digits are derived from the columns and the ledger's salt. So nobody else can compute them, or compare them
        with those of another ledger. They change if the ledger is lost, because a new ledger has another salt.
        """
        return self.pseudonym(f"{party.register.name} {party.content}".encode())

    def pseudonym(self, content: bytes) -> str:
        """Return 32 hex digits derived from `content` and the salt: equal for equal `content`, revealing nothing."""
        with self._changing() as change:
            salt = change.contents.salt
        return hmac.new(salt, content, hashlib.sha256).hexdigest()[:32]

    def forecast(
        self, register: Register, disclosures: Sequence[Disclosure], *, but: str = ""
    ) -> tuple[list[LedgerEntry], list[str]]:
        """Return what earlier runs disclosed about a table, and which limits a new run would exceed; enter nothing.

        Args:
            register: the ids of the table.
            disclosures: the disclosures of the new run.
            but: name of a run whose entries are left out.

        Returns:
            The earlier entries that count for the table, and a line of text for each limit that would be exceeded.
        """
        contents = self._without_dead_sessions(self.read())
        entries = [entry for entry in contents.counted if not but or entry.run != but]
        before = self._counting(contents, self._table(contents, register), entries)
        return before, self._exceeded_limits(contents, before, _entries(register.name, ("", ""), disclosures))

    def counted_for(self, register: Register, *, but: SessionKey = ("", "")) -> list[LedgerEntry]:
        """Return the earlier entries that count for a session: about its table, and tables that share rows with it.

        Args:
            register: the ids of the table.
            but: a run and its session, whose entries are left out.

        Returns:
            The entries.
        """
        contents = self._without_dead_sessions(self.read())
        return self._counting(contents, self._table(contents, register), _others(contents.counted, but))

    def table_disclosures(self, name: str) -> tuple[list[LedgerEntry], dict[str, int]]:
        """Return the entries that count for a known table, and how many rows it shares with each other table."""
        contents = self._without_dead_sessions(self.read())
        table = self._known_table(contents, name)
        others = [other for other in contents.tables if other != name]
        return self._counting(contents, table, contents.counted), self._count_shared(contents, table, others)

    def check_admission(
        self, register: Register, session: SessionKey, disclosures: Sequence[Disclosure], check: AdmissionCheck
    ) -> None:
        """Raise the error that `record` or `reserve` would raise, without entering anything.

        Args:
            register: the ids of the table.
            session: the run and its session.
            disclosures: everything that the session would disclose.
            check: function that is called with the earlier entries that count, and raises an error to refuse the
                session.
        """
        self._add_rows(register)
        with self._changing() as change:
            self._admit(change, register, session, disclosures, check)

    def record(
        self,
        register: Register,
        session: SessionKey,
        disclosures: Sequence[Disclosure],
        check: AdmissionCheck = lambda before: None,
    ) -> None:
        """Enter everything that a session discloses about a table, if the limits and `check` allow it.

        Args:
            register: the ids of the table.
            session: the run and its session.
            disclosures: everything that the session discloses.
            check: function that is called with the earlier entries that count. If it raises an error, nothing is
                entered.
        """
        self._add_rows(register)
        with self._changing() as change:
            self._admit(change, register, session, disclosures, check)
            new_entries = _entries(register.name, session, disclosures)
            entries = (*_others(change.contents.entries, session), *new_entries)
            change.contents = replace(change.contents, entries=entries)

    def reserve(
        self,
        register: Register,
        session: SessionKey,
        disclosures: Sequence[Disclosure],
        check: AdmissionCheck,
        *,
        ahead: Sequence[Disclosure],
    ) -> Reservation:
        """Admit a session that takes some time, and reserve everything that it would disclose.

        The reservation counts for other sessions until it is settled or its process ends.

        Args:
            register: the ids of the table.
            session: the run and its session.
            disclosures: everything that the session would disclose if it ran to its end.
            check: function that is called with the earlier entries that count, and raises an error to refuse the
                session.
            ahead: the disclosures of the first iterations, which are entered now.

        Returns:
            The reservation.
        """
        self._add_rows(register)
        with ExitStack() as undo:
            with self._changing() as change:
                self._admit(change, register, session, disclosures, check)
                active_locks = {reservation.lock_name for reservation in change.contents.reserved}
                self._locks.remove_stale(active_locks)
                lock_name, descriptor = self._locks.create()
                undo.callback(os.close, descriptor)
                undo.callback(self._locks.remove, lock_name)
                contents = change.contents
                reservation = ReservedSession(lock_name, _entries(register.name, session, disclosures))
                change.contents = replace(
                    contents,
                    entries=(*_others(contents.entries, session), *_entries(register.name, session, ahead)),
                    reserved=(*contents.reserved, reservation),
                )
            undo.pop_all()
        return Reservation(self, register, session, lock_name, descriptor, change.contents.limits)

    def trust(self, peer: str, *, trusted: bool = True) -> None:
        """Record whether the owner trusts a peer to follow the protocol.

        Gradients are linear equations about labels. If a trusted peer receives the same equations in several jobs,
        because their batches and the peer's columns are the same, they count once.
        """
        with self._changing() as change:
            others = tuple(other for other in change.contents.trusts if other != peer)
            change.contents = replace(change.contents, trusts=(*others, peer) if trusted else others)

    def check_early_aborts(self, peers: Collection[str]) -> None:
        """Check that fewer than MAX_EARLY_ABORTS sessions, with any peers, have ended early; otherwise none may begin.

        This is called before the table is inspected, because a session that then ends early may disclose one bit of it.

        Args:
            peers: names of the other parties of the session that is about to begin, for the error.

        Raises:
            LeakageError: if MAX_EARLY_ABORTS sessions or more have ended early.
        """
        tries = self.read().tries
        if (so_far := sum(aborts.count for aborts in tries)) >= MAX_EARLY_ABORTS:
            most = max(tries, key=lambda aborts: aborts.count)
            raise LeakageError(
                f"party {self.party}: {so_far} sessions have ended early, {most.count} of them with "
                f"{', '.join(most.peers)}, and each may have revealed a bit of your table",
                "find the reason in the log; then allow as many again with "
                f"securevfl ledger --party {self.party} --reset-aborts {most.peers[0]}",
                code="SVFL-LIMIT-REACHED",
                party=self.party,
                peers=tuple(sorted(peers)),
            )

    def record_early_abort(self, peers: Collection[str]) -> None:
        """Enter that a session with these peers has ended early for a reason that may depend on data.

        Args:
            peers: all peers of the session; sessions with other sets of peers are listed separately.
        """
        same_peers = tuple(sorted(peers))
        with self._changing() as change:
            others = tuple(aborts for aborts in change.contents.tries if aborts.peers != same_peers)
            so_far = sum(aborts.count for aborts in change.contents.tries if aborts.peers == same_peers)
            aborts = EarlyAborts(same_peers, so_far + 1)
            change.contents = replace(change.contents, tries=(*others, aborts))

    def reset_early_aborts(self, peer: str) -> None:
        """Remove the early aborts of all sessions in which this peer took part."""
        with self._changing() as change:
            others = tuple(aborts for aborts in change.contents.tries if peer not in aborts.peers)
            change.contents = replace(change.contents, tries=others)

    def record_answer(self, training: str, run: str, disclosure: Disclosure, *, known_count: bool = False) -> None:
        """Enter how many scores or ids a prediction has disclosed so far, in place of its earlier entry of that kind.

        Args:
            training: name of the training of the model, by which the ledger finds its table. If the training was
                resumed, the name of the run in its checkpoint and that of the session that completed it are both valid.
            run: name of the prediction.
            disclosure: what the prediction has disclosed; a count of 0 removes the entry.
            known_count: whether the learner knows the count before it receives the answer, so that it could compute
                itself whether its limit is exceeded.

        Raises:
            AnswerLimitError: the disclosure would exceed a limit.
        """
        with self._changing() as change:
            change.contents = self._with_answer(change.contents, training, run, disclosure, known_count)

    def check_answer(self, training: str, run: str, disclosure: Disclosure) -> None:
        """Check that a prediction may disclose these scores or ids; the ledger does not change.

        Args:
            training: name of the training of the model, as in `record_answer`.
            run: name of the prediction.
            disclosure: what the prediction would have disclosed, with a count that the learner knows.

        Raises:
            AnswerLimitError: the disclosure would exceed a limit.
        """
        self._with_answer(self.read(), training, run, disclosure, known_count=True)

    def _with_answer(
        self, contents: LedgerContents, training: str, run: str, disclosure: Disclosure, known_count: bool
    ) -> LedgerContents:
        """Return the contents in which this disclosure replaces the prediction's earlier one of the same kind."""
        tables = (entry.table for entry in contents.entries if training in (entry.run, entry.session))
        table = next(tables, f"model {training[:16]}")
        if table not in contents.tables:
            contents = replace(contents, tables=contents.tables | {table: KnownTable(0, _now())})
        before = tuple(
            entry
            for entry in contents.entries
            if (entry.run, entry.session, entry.disclosure.key) != (run, "", disclosure.key)
        )
        contents = replace(contents, entries=before)
        new_entries = _entries(table, (run, ""), [disclosure] if disclosure.count else [])
        try:
            self._check(contents, self._known_table(contents, table), contents.counted, new_entries)
        except LeakageError as error:
            refusal = AnswerLimitError(error.problem, error.remedy, code=error.code, **error.fields)
            # a refusal reveals nothing new if it follows from answers that this learner has received about this table
            received = [
                entry
                for entry in contents.counted
                if (entry.table, entry.disclosure.learner) == (table, disclosure.learner)
            ]
            refusal.depends_on_table = not (known_count and self._exceeded_limits(contents, received, new_entries))
            raise refusal from None
        return replace(contents, entries=contents.entries + new_entries)

    def set_limit(self, kind: Kind, limit: Limit | None) -> None:
        """Set the limit of what all runs may disclose about a table to all peers together; None removes the limit."""
        with self._changing() as change:
            others = {other: value for other, value in change.contents.limits.items() if other != kind}
            limits = others if limit is None else others | {kind: limit}
            change.contents = replace(change.contents, limits=limits)

    def _admit(
        self,
        change: _Change,
        register: Register,
        session: SessionKey,
        disclosures: Sequence[Disclosure],
        check: AdmissionCheck,
    ) -> None:
        """Check a session against earlier entries and limits, and add its table to the ledger."""
        table = self._table(change.contents, register)
        others = _others(change.contents.counted, session)
        self._check(change.contents, table, others, _entries(register.name, session, disclosures), check)
        change.contents = self._with_table(change, table)

    def _check(
        self,
        contents: LedgerContents,
        table: _Table,
        entries: Sequence[LedgerEntry],
        new_entries: Sequence[LedgerEntry],
        check: AdmissionCheck = lambda before: None,
    ) -> None:
        """Raise an error if `check` or a limit does not allow new entries about a table after these earlier entries.

        Which earlier entries count depends on the row about which most was disclosed, and finding it among millions of
        rows takes time. This search is skipped if the new entries are allowed even in the worst case, in which one row
        is in all tables that share rows with this one. The search could only remove earlier entries, and fewer earlier
        entries never add a leak (`FamilyOutputs.leaks`), so it would allow the new entries too.
        """
        at_most = self._counting(contents, table, entries, worst_row=False)
        if any(entry.table != table.name for entry in at_most):
            with suppress(LeakageError):
                check(at_most)
                totals = {kind: total_of([*at_most, *new_entries], kind) for kind in contents.limits}
                if all(contents.limits[kind].allows(total) for kind, total in totals.items()):
                    return
        before = self._counting(contents, table, entries)
        check(before)
        self._refuse(self._exceeded_limits(contents, before, new_entries))

    def _add_rows(self, register: Register) -> None:
        """Add a table with its rows, unless the ledger has them already or the table has no ids.

        The set of rows may be large, so this change is lost if the process is killed. That does no harm, because no
        disclosure about the table has been entered then either.
        """
        if register.ids is None:
            return
        with self._changing(recorded=False) as change:
            known = change.contents.tables.get(register.name)
            if known is None or known.members is None:
                change.contents = self._with_table(change, self._table(change.contents, register))

    def _without_dead_sessions(self, contents: LedgerContents) -> LedgerContents:
        """Return the contents without reservations whose process has ended."""
        active = tuple(reservation for reservation in contents.reserved if self._locks.is_held(reservation.lock_name))
        return contents if len(active) == len(contents.reserved) else replace(contents, reserved=active)

    def _row_sets(self, contents: LedgerContents) -> RowSets:
        database = self.database if self.path.exists() else AccountDatabase(None)
        return RowSets(database, contents.salt)

    def _table(self, contents: LedgerContents, register: Register) -> _Table:
        """Return the table with these ids, with its rows compared to those of the ledger's tables."""
        known = contents.tables.get(register.name)
        if known is not None and known.members is not None:
            return self._known_table(contents, register.name)
        members = None if register.ids is None else self._row_sets(contents).members(register, contents.sets)
        return _Table(register.name, register.rows, members)

    def _known_table(self, contents: LedgerContents, name: str) -> _Table:
        known = contents.tables[name]
        has_others = any(table != name for table in contents.tables)
        members = None
        if known.members is not None and has_others:
            members = self._row_sets(contents).known(name, contents.sets)
        return _Table(name, known.rows, members)

    def _with_table(self, change: _Change, table: _Table) -> LedgerContents:
        """Return the contents with this table added; the rows of a table with ids are written to the file."""
        contents = change.contents
        known = contents.tables.get(table.name, KnownTable(table.rows, _now()))
        if known.members is None and table.members is not None:
            row_sets = self._row_sets(contents)
            counts = row_sets.count_shared(table.members, contents.sets)
            members = row_sets.write(change.tables, table.name, table.members)
            row_sets.store_shared(change.tables, table.name, counts)
            known = replace(known, members=members)
        return replace(contents, tables=contents.tables | {table.name: known})

    def _count_shared(self, contents: LedgerContents, table: _Table, names: Iterable[str]) -> dict[str, int]:
        """Return how many rows a table shares with each of the tables `names`. Tables without shared rows are left out.

        If one of two tables has no ids, the largest possible number is assumed: that of the smaller table's rows.
        """
        known = {name: contents.tables[name] for name in names}
        sets = {name: other.members for name, other in known.items() if other.members is not None}
        sets.pop(table.name, None)
        if table.members is None:
            sets = {}
        shared = {name: min(other.rows, table.rows) for name, other in known.items() if name not in sets}
        if sets and table.members is not None:
            row_sets = self._row_sets(contents)
            stored = row_sets.stored_shared(table.name) if table.name in contents.sets else {}
            shared |= {name: stored[name] for name in sets.keys() & stored.keys()}
            if others := {name: row_set for name, row_set in sets.items() if name not in stored}:
                shared |= row_sets.count_shared(table.members, others)
        return {name: shared[name] for name in known if shared[name] or name == table.name}

    def _counting(
        self, contents: LedgerContents, table: _Table, entries: Iterable[LedgerEntry], *, worst_row: bool = True
    ) -> list[LedgerEntry]:
        """Return the entries that count for a table, with amounts reduced to the rows that it shares.

        Entries about tables without a shared row do not count. For numbers about labels or columns of single rows, only
        the entries about tables that contain the most disclosed row count. If `worst_row` is False, the entries about
        all tables with a shared row count.
        """
        entries = list(entries)
        shared = self._count_shared(contents, table, dict.fromkeys(entry.table for entry in entries))
        counting = [
            replace(
                entry,
                disclosure=_charged_to_shared(entry.disclosure, contents.tables[entry.table].rows, shared[entry.table]),
            )
            for entry in entries
            if entry.table in shared
        ]
        known = {name: members for name, members in contents.sets.items() if name in shared and name != table.name}
        if not worst_row or table.members is None or len(known) < 2:
            return counting
        by_subject: dict[object, list[LedgerEntry]] = {}
        for entry in counting:
            if entry.table in known and entry.disclosure.kind in ("labels", "columns"):
                by_subject.setdefault(_subject(entry.disclosure), []).append(entry)
        if not by_subject:
            return counting
        weights = np.array([_weights(subject_entries, list(known)) for subject_entries in by_subject.values()])
        has_worst = self._row_sets(contents).worst(table.members, known, weights.reshape(-1, len(known)))
        tables_of_worst = {
            subject: {name for name, has in zip(known, has_worst[2 * k] | has_worst[2 * k + 1], strict=True) if has}
            for k, subject in enumerate(by_subject)
        }
        return [
            entry
            for entry in counting
            if entry.table not in known or entry.table in tables_of_worst.get(_subject(entry.disclosure), known)
        ]

    def _refuse(self, reasons: Sequence[str]) -> None:
        if reasons:
            raise LeakageError("\n".join(reasons), "", code="SVFL-LIMIT-REACHED", party=self.party)

    def _exceeded_limits(
        self, contents: LedgerContents, before: Sequence[LedgerEntry], new_entries: Sequence[LedgerEntry]
    ) -> list[str]:
        """Return a line of text for each of the owner's limits that the new entries would exceed."""
        lines = []
        for kind, limit in contents.limits.items():
            so_far, after = total_of(before, kind), total_of([*before, *new_entries], kind)
            if limit.allows(after) or not after.exceeds(so_far):
                continue
            learners = _learners(before, kind)
            received = "they have"
            if learners:
                received = f"{' and '.join(learners)} {'has' if len(learners) == 1 else 'have'}"
            lines.append(
                f"party {self.party}: its ledger allows all peers together at most {limit.of(kind)}; {received} "
                f"received {so_far.of(kind)} and would have received {after.of(kind)} after this run. "
                f"To disclose less, {_REMEDIES[kind]}. To raise the limit: "
                f"securevfl ledger --party {self.party} --limit {kind}={limit.needed(after)}"
            )
        return lines

    @contextmanager
    def _changing(self, *, recorded: bool = True) -> Iterator[_Change]:
        """Yield the contents for one change, which excludes all other changes.

        When the `with` block ends, changed contents are on disk; a ledger that did not exist has been created.

        Args:
            recorded: whether the change is repeated after a lost write; see `AccountDatabase.changing`.

        Yields:
            The contents, which the block may replace.
        """
        with self.database.changing(recorded=recorded) as tables:
            stored = load_contents(tables, self._salt, self.path)
            before = LedgerContents(self.party, self._salt) if stored is None else self._checked(stored)
            change = _Change(self._without_dead_sessions(before), tables)
            yield change
            if stored is None or change.contents is not before:
                store_contents(tables, stored, change.contents)
        remaining = {reservation.lock_name for reservation in change.contents.reserved}
        for ended in {reservation.lock_name for reservation in before.reserved} - remaining:
            self._locks.remove(ended)


class Reservation:
    """The reservation of a running session: everything that it would disclose, stored in the ledger.

    It counts until `settle` is called, the process ends, or the program drops its last reference to this object.

    Args:
        ledger: the ledger.
        register: the ids of the table.
        session: the run and its session.
        lock_name: name of the lock that shows that the session's process is running.
        descriptor: file descriptor of the lock, which is closed with this object.
        limits: the limits under which the session was admitted.
    """

    def __init__(
        self,
        ledger: DisclosureLedger,
        register: Register,
        session: SessionKey,
        lock_name: str,
        descriptor: int,
        limits: Mapping[Kind, Limit],
    ) -> None:
        self._ledger = ledger
        self._register = register
        self._session = session
        self._lock_name = lock_name
        self._limits = limits
        self._release = weakref.finalize(self, os.close, descriptor)

    def lease(self, disclosures: Sequence[Disclosure]) -> None:
        """Enter the disclosures of the next iterations, in place of the session's earlier entries.

        Args:
            disclosures: all disclosures of the session so far, including those of the next iterations.

        Raises:
            LeakageError: if a limit would be exceeded, because the owner has changed it or because the session
                discloses more than was reserved.
        """
        ledger, new_entries = self._ledger, _entries(self._register.name, self._session, disclosures)
        with ledger._changing() as change:
            contents = change.contents
            others, reserved = self._split(contents)
            counts = {entry.disclosure.key: entry.disclosure.count for entry in reserved}
            larger = [entry for entry in new_entries if entry.disclosure.count > counts.get(entry.disclosure.key, -1)]
            if larger or contents.limits != self._limits:
                others_entries = _others(contents.counted, self._session)
                ledger._check(contents, ledger._table(contents, self._register), others_entries, new_entries)
            replaced = {entry.disclosure.key for entry in larger}
            remaining = (*(entry for entry in reserved if entry.disclosure.key not in replaced), *larger)
            change.contents = replace(
                contents,
                entries=(*_others(contents.entries, self._session), *new_entries),
                reserved=(*others, ReservedSession(self._lock_name, remaining)),
            )

    def settle(self, disclosures: Sequence[Disclosure]) -> None:
        """End the reservation, and replace the session's entries by its actual disclosures."""
        try:
            with self._ledger._changing() as change:
                contents = change.contents
                new_entries = _entries(self._register.name, self._session, disclosures)
                entries = (*_others(contents.entries, self._session), *new_entries)
                others, _ = self._split(contents)
                change.contents = replace(contents, entries=entries, reserved=others)
        finally:
            self._release()

    def _split(self, contents: LedgerContents) -> tuple[tuple[ReservedSession, ...], tuple[LedgerEntry, ...]]:
        """Return the reservations of all other sessions, and the reserved entries of this session."""
        others = tuple(item for item in contents.reserved if item.lock_name != self._lock_name)
        reserved = next((item.entries for item in contents.reserved if item.lock_name == self._lock_name), ())
        return others, reserved


@dataclass
class _Change:
    """The contents of a ledger during one change. The code inside `with ledger._changing()` replaces `contents`."""

    contents: LedgerContents
    tables: Tables


_REMEDIES = {
    "labels": "use the same batches and columns as before",
    "columns": "run fewer epochs",
    "scores": "evaluate or predict less",
    "ids": "ask about fewer ids",
}


def total_of(entries: Iterable[LedgerEntry], kind: Kind) -> DisclosureTotal:
    """Return what all learners have received of this kind over all entries, as leak checks and limits count it."""
    return sum_disclosures((entry.run, entry.disclosure) for entry in entries if entry.disclosure.kind == kind)


def total_to(entries: Iterable[LedgerEntry], kind: Kind, learner: str) -> DisclosureTotal:
    """Return the total of one kind that this learner alone has received according to all entries."""
    return sum_disclosures(
        (entry.run, entry.disclosure)
        for entry in entries
        if (entry.disclosure.kind, entry.disclosure.learner) == (kind, learner)
    )


def _charged_to_shared(disclosure: Disclosure, rows: int, shared: int) -> Disclosure:
    """Return how a disclosure about a table of `rows` rows counts for another table that has `shared` of these rows.

    Numbers per row count unchanged. Amounts of the whole table (linear equations in its values, or bits) count in full,
    because all of them may be about the shared rows. Their capacity shrinks to that of the shared rows, but not below
    the count, so that the share is at most 1.
    """
    counts_all_rows = disclosure.kind == "labels" or disclosure.group in SUM_GROUPS
    if shared >= rows or not disclosure.capacity or not counts_all_rows:
        return disclosure
    smallest = min(disclosure.count, disclosure.capacity)
    return replace(disclosure, capacity=max(1, disclosure.capacity * shared // rows, smallest))


def _subject(disclosure: Disclosure) -> object:
    """Return a key for grouping. If a row is in several tables, its disclosures with equal keys are added up."""
    return disclosure.kind, disclosure.group in SUM_GROUPS


def _weights(entries: Sequence[LedgerEntry], names: Sequence[str]) -> list[list[float]]:
    """Return the total count and the total share of the entries of each table, as two lists in the order of `names`."""
    totals = [
        sum_disclosures((entry.run, entry.disclosure) for entry in entries if entry.table == name) for name in names
    ]
    return [[total.count for total in totals], [total.share for total in totals]]


def _learners(entries: Iterable[LedgerEntry], kind: Kind) -> list[str]:
    """Return the names of the parties that have received disclosures of this kind."""
    return sorted({entry.disclosure.learner for entry in entries if entry.disclosure.kind == kind})


def _entries(table: str, session: SessionKey, disclosures: Sequence[Disclosure]) -> tuple[LedgerEntry, ...]:
    run, session_id = session
    return tuple(LedgerEntry(table, run, _now(), disclosure, session_id) for disclosure in disclosures)


def _others(entries: Iterable[LedgerEntry], session: SessionKey) -> tuple[LedgerEntry, ...]:
    """Return all entries except those of this session."""
    return tuple(entry for entry in entries if (entry.run, entry.session) != session)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
