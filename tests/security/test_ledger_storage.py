"""Errors of disks, locks and descriptors keep their cause, and strangers cannot keep a ledger from opening."""

import os
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from securevfl.account import database as database_module
from securevfl.account.database import AccountDatabase
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import DataError, StorageError
from tests.builders import raises_code

SCHEMA = "CREATE TABLE IF NOT EXISTS rows (row INTEGER);"


def mounted(folder: Path, *options: str) -> bool:
    """Mount a file system in memory with these options, if this process may."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)]
    with suppress(OSError):
        return subprocess.run(command, capture_output=True, check=False, timeout=10).returncode == 0
    return False


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    if not mounted(folder, "size=256k"):
        pytest.skip("this process may not mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True, timeout=10)


def fill(folder: Path) -> None:
    with suppress(OSError), (folder / "large").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_a_full_disk_is_reported_while_a_ledger_is_created(small_disk: Path) -> None:
    fill(small_disk)
    with raises_code(StorageError, "SVFL-FILE-NO-SPACE"):
        AccountDatabase.shared(small_disk / "scores", SCHEMA)


def test_a_ledger_is_opened_on_a_full_disk(small_disk: Path) -> None:
    AccountDatabase.shared(small_disk / "scores", SCHEMA)
    fill(small_disk)
    with AccountDatabase.shared(small_disk / "scores", SCHEMA).reading() as tables:
        assert tables.execute("SELECT count(*) FROM rows").fetchone() == (0,)


def test_a_full_disk_is_reported_while_a_ledger_is_changed(small_disk: Path) -> None:
    ledger = AccountDatabase.shared(small_disk / "scores", SCHEMA)
    fill(small_disk)
    with raises_code(StorageError, "SVFL-FILE-NO-SPACE"), ledger.changing() as tables:
        tables.executemany("INSERT INTO rows VALUES (?)", ((row,) for row in range(50_000)))
    (small_disk / "large").unlink()
    with ledger.changing() as tables:
        tables.execute("INSERT INTO rows VALUES (1)")


def test_a_read_only_disk_is_reported_as_such(small_disk: Path) -> None:
    AccountDatabase.shared(small_disk / "scores", SCHEMA)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True, timeout=10)
    database = AccountDatabase.shared(small_disk / "scores", SCHEMA)
    with raises_code(StorageError, "SVFL-FILE-UNUSABLE") as caught, database.changing() as tables:
        tables.execute("INSERT INTO rows VALUES (1)")
    assert "Read-only file system" in str(caught.value)


def test_a_lock_by_another_program_is_reported_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    AccountDatabase.shared(tmp_path / "scores", SCHEMA)
    monkeypatch.setattr(database_module, "_LOCK_TIMEOUT", 0.1)
    with closing(sqlite3.connect(tmp_path / "scores", isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with raises_code(StorageError, "SVFL-FILE-IN-USE") as caught:
            AccountDatabase.shared(tmp_path / "scores", SCHEMA)
        assert "another program has locked it" in str(caught.value)
    AccountDatabase.shared(tmp_path / "scores", SCHEMA)


def test_another_database_is_reported_as_foreign(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "scores")) as other:
        other.execute("CREATE TABLE people (name TEXT)")
        other.commit()
    with raises_code(DataError, "SVFL-LEDGER-FOREIGN"):
        AccountDatabase.shared(tmp_path / "scores", SCHEMA)


@pytest.fixture
def no_descriptors() -> Iterator[list[int]]:
    """Descriptors that a test has used up."""
    used: list[int] = []
    yield used
    for descriptor in used:
        os.close(descriptor)


def use_up(descriptors: list[int]) -> None:
    with suppress(OSError):
        while True:
            descriptors.append(os.dup(0))


def test_ledgers_record_when_no_descriptor_is_left(tmp_path: Path, no_descriptors: list[int]) -> None:
    ledger = DisclosureLedger(tmp_path / "bank.ledger", "bank")
    assert ledger.pseudonym(b"first")
    scores = AccountDatabase.shared(tmp_path / "scores", SCHEMA)
    use_up(no_descriptors)
    with pytest.raises(OSError, match="Too many open files"):
        (tmp_path / "other").open("wb")
    assert ledger.pseudonym(b"first") == ledger.pseudonym(b"first")
    assert ledger.read().party == "bank"
    with scores.changing() as tables:
        tables.execute("INSERT INTO rows VALUES (1)")
    assert AccountDatabase.shared(tmp_path / "others", SCHEMA).key
    use_up(no_descriptors)
    assert ledger.pseudonym(b"first") == ledger.pseudonym(b"first")
