"""The file of an account: killed processes, older copies, exchanged files, several users, damage and full disks."""

from __future__ import annotations

import gc
import hashlib
import itertools
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from securevfl.account import commit_counter
from securevfl.account.account_errors import error_of_sqlite
from securevfl.account.commit_counter import CommitCounter, state_folder
from securevfl.account.database import AccountDatabase
from securevfl.data.id_keys import id_keys
from securevfl.data.register import Register
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger import DisclosureLedger, total_of
from securevfl.errors import DataError, LeakageError, SecureVFLError, StorageError
from tests.builders import raises_code
from tests.test_locks import open_descriptors

SCHEMA = "CREATE TABLE IF NOT EXISTS numbers (number INTEGER);"
CRASH_POINTS = ("before the counter", "after the counter", "after the commit")


class KilledError(BaseException):
    """Ends a change as the end of its process would."""


class Account:
    """An account that adds numbers, and the number of additions that a caller has seen succeed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.disclosed = 0

    def add(self, database: AccountDatabase | None = None) -> None:
        database = AccountDatabase.shared(self.path, SCHEMA) if database is None else database
        with database.changing() as tables:
            tables.execute("INSERT INTO numbers VALUES (1)")
        self.disclosed += 1

    def count(self) -> int:
        with AccountDatabase.shared(self.path, SCHEMA).reading() as tables:
            return int(tables.execute("SELECT count(*) FROM numbers").fetchone()[0])

    def begin(self) -> Callable[[], None]:
        """Return a function that adds a number by one change of the file."""
        database = AccountDatabase.shared(self.path, SCHEMA)

        def change() -> None:
            with database.changing() as tables:
                tables.execute("INSERT INTO numbers VALUES (1)")

        return change

    def refusal(self) -> DataError | None:
        """Return the error with which the file is refused, or None."""
        try:
            self.count()
        except DataError as error:
            return error
        return None

    def add_and_die(self, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Add a number in a process that dies at this point; the caller never learns whether it was added."""
        database = AccountDatabase.shared(self.path, SCHEMA)
        die(self.begin(), point, monkeypatch)
        close(database)
        del database
        gc.collect()


def close(database: AccountDatabase) -> None:
    """Close the file as the end of a process does."""
    database._connection.close()


def die(act: Callable[[], object], point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Act in a process that dies at this point."""
    write = CommitCounter.write

    def dying(counter: CommitCounter, record: commit_counter.CommitRecord) -> None:
        if point != "before the counter":
            write(counter, record)
        raise KilledError

    with monkeypatch.context() as patch:
        if point == "after the commit":
            patch.setattr(AccountDatabase, "_flush", _commit_and_die)
        else:
            patch.setattr(CommitCounter, "write", dying)
        with pytest.raises(KilledError):
            act()


class LedgerAccount(Account):
    """A disclosure ledger in which a session records a number about each row before it sends the number."""

    register = Register.of_ids(id_keys("shop", [["1", "2"]]))
    begun = 0

    def begin(self) -> Callable[[], None]:
        self.begun += 1
        session, number = (f"run {self.begun}", ""), [Disclosure("columns", "bank", ("shop",), 1, 1_000_000)]
        ledger = DisclosureLedger(self.path, "shop")
        reservation = ledger.reserve(self.register, session, number, lambda before: None, ahead=[])
        return lambda: reservation.lease(number)

    def add(self, database: AccountDatabase | None = None) -> None:
        self.begin()()
        self.disclosed += 1

    def count(self) -> int:
        return total_of(DisclosureLedger(self.path, "shop").read().entries, "columns").count


def _commit_and_die(database: AccountDatabase, group: object) -> None:
    database._commit(group)  # type: ignore[arg-type]
    database._closing.state = b""
    raise KilledError


@pytest.fixture(autouse=True, scope="module")
def _fast_collections() -> None:
    """Leave out the objects of earlier tests in the many collections of this file, each of which would visit them."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    monkeypatch.setenv("SECUREVFL_STATE", str(tmp_path / "state"))
    yield Account(tmp_path / "bank.ledger")
    gc.collect()


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_a_killed_change_is_carried_out_or_absent(
    point: str, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.add()
    account.add_and_die(point, monkeypatch)
    assert account.count() == (1 if point == "before the counter" else 2)
    account.add()
    assert account.count() == (2 if point == "before the counter" else 3)


INTERRUPTIONS = [CRASH_POINTS[k] for k in (1, 1, 0, 0, 1, 2)]
"""Points at which six processes in turn die while they carry out an earlier change; the last one has committed it."""


def test_a_change_survives_interrupted_openings(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    account.add()
    account.add_and_die("after the counter", monkeypatch)
    for point in INTERRUPTIONS:
        die(lambda: AccountDatabase(account.path), point, monkeypatch)
    assert account.count() == 2


def test_a_change_survives_interrupted_changes(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each dying process has opened the file before, and carries out the earlier changes together with its change."""
    account.add()
    others = [AccountDatabase(account.path) for _ in INTERRUPTIONS]
    account.add_and_die("after the counter", monkeypatch)
    for other, point in zip(others, INTERRUPTIONS, strict=True):
        die(partial(account.add, other), point, monkeypatch)
        other._connection.close()
    assert account.count() == 2 + len(INTERRUPTIONS) - INTERRUPTIONS.count("before the counter")


@contextmanager
def reader_of(path: Path) -> Iterator[None]:
    """Read a file in another program, so that nobody can commit a change of it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM numbers").fetchone()
        yield


def test_a_change_survives_failed_commits_of_others(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that failed is not carried out later, but the change of a process that died before is."""
    account.add()
    other = AccountDatabase(account.path)
    other._connection.execute("PRAGMA busy_timeout = 10")
    account.add_and_die("after the counter", monkeypatch)
    for expected in (2, 3):
        with reader_of(account.path):
            for _ in range(2):
                with raises_code(StorageError, "SVFL-FILE-IN-USE"):
                    account.add(other)
        assert account.count() == expected
        account.add(other)


@pytest.mark.parametrize("seed", [pytest.param(k, marks=[pytest.mark.slow] * (k >= 2)) for k in range(20)])
def test_random_schedules_never_lose_a_disclosure(seed: int, account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty schedules a seed of additions, kills, copies, restored copies and a second user of the file.

    `make test` plays 100 schedules, and `make soak` the other 900. Seed s and schedule k draw from
    `random.Random(1000 * s + k)`.

    After each step the account has at least as many additions as its users saw succeed, or it is refused, and the
    newest copy is accepted.
    """
    for schedule in range(50):
        draw = random.Random(1000 * seed + schedule)
        account.path = account.path.with_name(f"{seed}-{schedule}.ledger")
        account.disclosed = 0
        account.add()
        gc.collect()
        copies = [account.path.read_bytes()]  # so that a restored copy is often older than the file
        for _ in range(8):
            step = draw.choice(["add", "add", "die", "copy", "restore", "second user"])
            newest = account.path.read_bytes()
            if step == "add":
                account.add()
            elif step == "die":
                account.add_and_die(draw.choice(CRASH_POINTS), monkeypatch)
            elif step == "copy":
                copies.append(newest)
            elif step == "second user":
                first, second = AccountDatabase(account.path), AccountDatabase(account.path)
                for database in draw.sample([first, second, first, second], 3):
                    account.add(database)
                del first, second, database
            else:
                account.path.write_bytes(draw.choice(copies))
            gc.collect()
            if step == "restore" and (refused := account.refusal()) is not None:
                assert refused.code == "SVFL-LEDGER-DAMAGED"
                account.path.write_bytes(newest)
            assert account.count() >= account.disclosed, (seed, schedule, step)
        gc.collect()


@pytest.mark.parametrize("seed", [pytest.param(k, marks=[pytest.mark.slow] * (k >= 3)) for k in range(10)])
def test_every_refusal_of_a_ledger_states_a_way_on(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty schedules a seed of sessions, kills and restored copies of a ledger; the draw's seed is 20 * seed + k.

    After a refusal the owner takes one of the ways that its message states: the newest copy, or `ledger --adopt`, by
    which everything counts as disclosed. In both cases, the ledger counts at least what was disclosed, and the next
    session can begin.
    """
    monkeypatch.setenv("SECUREVFL_STATE", str(tmp_path / "state"))
    ways = set()
    for k in range(20):
        draw, account, copies = random.Random(20 * seed + k), LedgerAccount(tmp_path / f"{k}.ledger"), list[bytes]()
        account.add()
        for _ in range(6):
            step = draw.choice(["add", "die", "copy", "restore"])
            newest = account.path.read_bytes()
            if step == "add":
                account.add()
            elif step == "die":
                account.add_and_die(draw.choice(CRASH_POINTS), monkeypatch)
            elif step == "copy" or not copies:
                copies.append(newest)
            else:
                account.path.write_bytes(draw.choice(copies))
            gc.collect()
            if step == "restore" and (refused := account.refusal()) is not None:
                assert "newest" in str(refused)
                assert "--adopt" in str(refused)
                ways.add(way := draw.choice(["newest", "adopt"]))
                if way == "newest":
                    account.path.write_bytes(newest)
                else:
                    DisclosureLedger.adopt(account.path)
                    assert account.count() > 1_000_000
                gc.collect()
            assert account.count() >= account.disclosed, (seed, k, step)
        account.add()
        gc.collect()
    assert ways == {"newest", "adopt"}


WORKER = """
import sys
from pathlib import Path
from securevfl.account.database import AccountDatabase
database = AccountDatabase.shared(Path(sys.argv[1]), "CREATE TABLE IF NOT EXISTS numbers (number INTEGER);")
for number in range(10_000):
    with database.changing() as tables:
        tables.execute("INSERT INTO numbers VALUES (1)")
    print(number + 1, flush=True)
"""


def test_a_killed_process_has_disclosed_no_more_than_is_recorded(account: Account) -> None:
    for pause in (0.0, 0.02, 0.05):
        before = account.count() if account.path.exists() else 0
        gc.collect()
        command = [sys.executable, "-c", WORKER, str(account.path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "1\n"
            time.sleep(pause)
            process.send_signal(signal.SIGKILL)
            lines = process.stdout.read().splitlines()
        seen = int(lines[-1]) if lines and lines[-1].isdigit() else 1
        assert before + seen <= account.count() <= before + seen + 2
        gc.collect()


@pytest.mark.parametrize("exchange", ["over the file", "in its place"])
def test_a_file_that_is_exchanged_while_open_is_refused(exchange: str, account: Account, tmp_path: Path) -> None:
    account.add()
    older = tmp_path / "older"
    shutil.copy(account.path, older)
    database = AccountDatabase.shared(account.path, SCHEMA)
    account.add(database)
    account.add(database)
    if exchange == "over the file":
        account.path.write_bytes(older.read_bytes())
    else:
        older.replace(account.path)
    with raises_code(DataError, "SVFL-LEDGER-DAMAGED"):
        account.add(database)


def test_a_copy_that_is_used_elsewhere_is_refused(account: Account, tmp_path: Path) -> None:
    account.add()
    gc.collect()
    copy = Account(tmp_path / "copy.ledger")
    shutil.copy(account.path, copy.path)
    copy.add()
    gc.collect()
    with raises_code(DataError, "SVFL-LEDGER-DAMAGED"):
        account.add()


def test_a_missing_counter_is_refused_until_the_file_is_adopted(account: Account) -> None:
    account.add()
    gc.collect()
    shutil.rmtree(state_folder())
    with raises_code(DataError, "SVFL-LEDGER-DAMAGED") as refused:
        account.add()
    assert "SECUREVFL_STATE" in str(refused.value)
    account.add(AccountDatabase(account.path, adopt=True))
    gc.collect()
    assert account.count() == 2
    account.add()


def test_an_older_copy_that_is_adopted_is_the_newest_file(account: Account) -> None:
    account.add()
    gc.collect()
    older = account.path.read_bytes()
    account.add()
    account.add()
    gc.collect()
    newest = account.path.read_bytes()
    account.path.write_bytes(older)
    account.add(AccountDatabase(account.path, adopt=True))
    gc.collect()
    assert account.count() == 2
    gc.collect()
    account.path.write_bytes(newest)
    with raises_code(DataError, "SVFL-LEDGER-DAMAGED"):
        account.count()


def test_changed_bits_and_truncated_files_are_refused(account: Account) -> None:
    with AccountDatabase.shared(account.path, SCHEMA).changing() as tables:
        tables.executemany("INSERT INTO numbers VALUES (?)", [(number,) for number in range(2000)])
    gc.collect()
    content, draw = account.path.read_bytes(), np.random.default_rng(1)
    for position in draw.choice(len(content), 60, replace=False).tolist():
        bit = 1 << int(draw.integers(8))
        account.path.write_bytes(content[:position] + bytes([content[position] ^ bit]) + content[position + 1 :])
        with pytest.raises(SecureVFLError) as refused:
            account.count()
        assert refused.value.code in ("SVFL-LEDGER-DAMAGED", "SVFL-LEDGER-FOREIGN")
        assert str(account.path) in str(refused.value)
    for length in (0, 10, 5000, len(content) - 1):
        account.path.write_bytes(content[:length])
        with pytest.raises(SecureVFLError):
            account.count()
    account.path.write_bytes(content)
    assert account.count() == 2000


@pytest.mark.parametrize("way", ["cp", "backup"])
def test_a_copy_is_the_newest_file_until_the_next_change(way: str, account: Account, tmp_path: Path) -> None:
    """Also a copy by SQLite, whose header has other counters of changes."""
    account.add()
    gc.collect()
    copy = tmp_path / "copy.ledger"

    def restore() -> None:
        account.path.unlink()
        shutil.copy(copy, account.path)

    if way == "cp":
        shutil.copy(account.path, copy)
    else:
        with closing(sqlite3.connect(account.path)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        assert copy.read_bytes() != account.path.read_bytes()
    restore()
    assert account.count() == 1
    account.add()
    gc.collect()
    restore()
    with raises_code(DataError, "SVFL-LEDGER-DAMAGED"):
        account.count()


def test_a_seal_of_an_older_version_is_accepted(account: Account) -> None:
    """Its digest is of the whole file."""
    account.add()
    gc.collect()
    with closing(sqlite3.connect(account.path)) as connection:
        (identifier,) = connection.execute("SELECT account FROM meta").fetchone()
    counter = CommitCounter(identifier)
    record = counter.read()
    assert record is not None
    assert record.seal
    file_digest = hashlib.sha256(account.path.read_bytes()).digest()
    counter.write(commit_counter.CommitRecord(record.number + 1, record.state, seal=file_digest))
    assert account.count() == 1


def test_an_interrupted_counter_write_leaves_the_other_slot(account: Account) -> None:
    account.add()
    account.add()
    gc.collect()
    slots = sorted(state_folder().iterdir(), key=lambda slot: slot.stat().st_mtime_ns)
    slots[0].write_bytes(slots[0].read_bytes()[:-3])
    account.add()
    assert account.count() == 3


def test_a_full_disk_and_a_foreign_lock_keep_their_cause(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    account.add()
    database = AccountDatabase.shared(account.path, SCHEMA)
    connection = database._connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    with raises_code(StorageError, "SVFL-FILE-NO-SPACE"), database.changing() as tables:
        tables.executemany("INSERT INTO numbers VALUES (?)", [(1,)] * 5000)
    connection.execute("PRAGMA max_page_count = 1000000")
    account.add()
    assert account.count() == 2
    connection.execute("PRAGMA busy_timeout = 10")
    with closing(sqlite3.connect(account.path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with raises_code(StorageError, "SVFL-FILE-IN-USE"):
            account.add()


def test_a_counter_that_cannot_be_written_changes_nothing(account: Account, tmp_path: Path) -> None:
    account.add()
    before = account.path.read_bytes()
    folder = state_folder()
    folder.rename(tmp_path / "elsewhere")
    folder.write_text("a file")
    with pytest.raises(StorageError):
        account.add()
    assert account.path.read_bytes() == before
    folder.unlink()
    (tmp_path / "elsewhere").rename(folder)
    account.add()
    assert account.count() == 2


@pytest.mark.parametrize("content", ["", "[]", '{"key": "00"}\n{"peer": 3}', "no"])
def test_a_file_of_another_kind_is_refused(content: str, account: Account) -> None:
    account.path.write_text(content)
    with raises_code(DataError, "SVFL-LEDGER-FOREIGN"):
        account.count()
    account.path.unlink()
    with closing(sqlite3.connect(account.path)) as database:
        database.execute("CREATE TABLE something (number INTEGER)")
    with raises_code(DataError, "SVFL-LEDGER-FOREIGN"):
        account.count()


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_a_statement_that_was_undone_is_not_carried_out_later(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change that waits for another session undoes its statements and tries again."""
    account = Account(tmp_path / "account")
    account.add()
    database = AccountDatabase.shared(account.path, SCHEMA)

    def change(database: AccountDatabase) -> None:
        with database.changing() as tables:
            for _ in range(3):
                tables.execute("INSERT INTO numbers VALUES (7)")
                tables.executemany("INSERT INTO numbers VALUES (?)", [(8,), (9,)])
                tables.undo()
            tables.execute("INSERT INTO numbers VALUES (1)")

    die(partial(change, database), point, monkeypatch)
    close(database)
    del database
    gc.collect()
    account.add()
    with AccountDatabase.shared(account.path, SCHEMA).reading() as tables:
        numbers = [number for (number,) in tables.execute("SELECT number FROM numbers")]
    assert numbers == [1] * (2 if point == "before the counter" else 3)


@pytest.mark.parametrize("present", list(itertools.product([False, True], repeat=3)))
def test_the_missing_tables_of_a_schema_are_created(present: tuple[bool, ...], tmp_path: Path) -> None:
    """Another module, or an earlier version, may have created some of them."""
    names = ("ones", "twos", "threes")
    creating = {name: f"CREATE TABLE IF NOT EXISTS {name} (number INTEGER)" for name in names}
    older = AccountDatabase(tmp_path / "account")
    for name, is_there in zip(names, present, strict=True):
        if is_there:
            older.create_tables(creating[name])
    database = AccountDatabase.shared(tmp_path / "account", "; ".join(creating.values()))
    with database.changing() as tables:
        for name in names:
            tables.execute(f"INSERT INTO {name} VALUES (1)")


def test_threads_share_a_commit_and_fail_alone(account: Account) -> None:
    database, statements = AccountDatabase.shared(account.path, SCHEMA), list[str]()
    assert AccountDatabase.shared(account.path) is database
    database._connection.set_trace_callback(statements.append)
    inside, threads = threading.Barrier(2), ThreadPoolExecutor(8)

    def change(row: int) -> None:
        with database.changing() as tables:
            if not row:
                inside.wait()
                while database._arrivals < 7:
                    time.sleep(0.001)
            tables.execute("INSERT INTO numbers VALUES (?)", (row,))
            if row == 5:
                raise LeakageError("refused")

    first = threads.submit(change, 0)
    inside.wait()
    others = [threads.submit(change, row) for row in range(1, 8)]
    first.result()
    for row, other in enumerate(others, 1):
        if row == 5:
            with pytest.raises(LeakageError):
                other.result()
        else:
            other.result()
    assert statements.count("COMMIT") < 4
    with closing(sqlite3.connect(account.path)) as connection:
        rows = sorted(connection.execute("SELECT number FROM numbers"))
    assert rows == [(0,), (1,), (2,), (3,), (4,), (6,), (7,)]


def test_an_unrecorded_change_is_a_commit_of_its_own(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash before its commit loses the change; the earlier state remains valid, and later changes count."""
    account.add()
    database = AccountDatabase.shared(account.path, SCHEMA)
    with database.changing(recorded=False) as tables:
        tables.executemany("INSERT INTO numbers VALUES (?)", ((number,) for number in range(3)))
    assert account.count() == 4
    assert all(b"INSERT" not in slot.read_bytes() for slot in state_folder().iterdir() if _is_newest(slot))


def _is_newest(slot: Path) -> bool:
    return slot == max(slot.parent.iterdir(), key=lambda path: path.stat().st_mtime_ns)


def test_files_are_private(account: Account) -> None:
    account.add()
    for path in (account.path, *state_folder().iterdir()):
        assert path.stat().st_mode & 0o777 == 0o600
    assert os.stat(state_folder()).st_mode & 0o777 == 0o700


def test_an_account_next_to_its_counter_is_warned_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = {tmp_path: 1, tmp_path / "disk": 2}
    (tmp_path / "disk").mkdir()
    monkeypatch.setattr(commit_counter, "_device", lambda folder: devices[folder])
    monkeypatch.setenv("SECUREVFL_STATE", str(tmp_path))
    assert commit_counter.shared_disk_warning(tmp_path / "disk" / "bank.ledger") is None
    warning = commit_counter.shared_disk_warning(tmp_path / "bank.ledger")
    assert warning is not None
    assert "SECUREVFL_STATE" in warning


def test_a_missing_folder_has_the_filesystem_of_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for counters, ledgers in (("a/b", "."), (".", "a/b"), ("a/b", "c")):
        monkeypatch.setenv("SECUREVFL_STATE", str(tmp_path / counters))
        assert commit_counter.shared_disk_warning(tmp_path / ledgers / "bank.ledger") is not None


def test_a_missing_or_newer_counter_needs_adoption(account: Account) -> None:
    account.add()
    old = account.path.read_bytes()
    account.add()
    gc.collect()
    account.path.write_bytes(old)
    assert getattr(account.refusal(), "code", None) == "SVFL-LEDGER-DAMAGED"  # the counter is newer
    gc.collect()
    for slot in state_folder().iterdir():
        slot.unlink()
    assert getattr(account.refusal(), "code", None) == "SVFL-LEDGER-DAMAGED"  # the counter is missing
    adopted = AccountDatabase.shared(account.path, adopt=True)
    with adopted.changing() as tables:
        tables.execute("INSERT INTO numbers VALUES (1)")
    assert account.refusal() is None


def changed_by_sql(account: Account, statement: str) -> None:
    with closing(sqlite3.connect(account.path)) as connection:
        connection.execute(statement)
        connection.commit()


def restored(account: Account) -> None:
    older = account.path.read_bytes()
    account.add()
    gc.collect()
    account.path.write_bytes(older)


REFUSED: dict[str, Callable[[Account], object]] = {
    "another kind": lambda account: account.path.write_text("no database"),
    "another database": lambda account: changed_by_sql(account, "DROP TABLE meta"),
    "another version": lambda account: changed_by_sql(account, "UPDATE meta SET schema = 9"),
    "damaged": lambda account: account.path.write_bytes(account.path.read_bytes().replace(b"numbers", b"nombers")),
    "an older copy": restored,
    "without its counter": lambda account: shutil.rmtree(state_folder()),
}
"""Changes of a file, for each of which it is refused."""


@pytest.mark.skipif(sys.platform != "linux", reason="counts the open descriptors as Linux lists them")
@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_file_leaves_no_descriptor(name: str, account: Account) -> None:
    account.add()
    gc.collect()
    REFUSED[name](account)
    counts = []
    for _ in range(3):
        with pytest.raises(DataError):
            AccountDatabase(account.path)
        counts.append(open_descriptors())
    assert counts == [min(counts)] * 3


def test_the_search_for_a_cause_leaves_no_file(tmp_path: Path) -> None:
    for path in (tmp_path / "bank.ledger", tmp_path / "missing" / "bank.ledger"):
        assert error_of_sqlite(sqlite3.OperationalError("disk I/O error"), path).code == "SVFL-FILE-UNUSABLE"
    assert not list(tmp_path.iterdir())
