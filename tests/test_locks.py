"""Every lock leaves neither an open file descriptor nor a new file: after its block, an error in it, or a refusal."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from itertools import count
from pathlib import Path

import numpy as np
import pytest

import securevfl as vfl
from securevfl.account.process_locks import ProcessLocks
from securevfl.base.file_locks import exclusive_lock, reserved_path, shared_locks
from securevfl.data.store import store_table
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import ConfigError, DataError
from securevfl.organisations.compare import exclusive_comparison
from securevfl.protocols.score_ledger.row_ledger import ScoreLedger
from securevfl.protocols.shares.disk_store import DiskStore, check_unlocked
from tests.parsed import PACKAGE, files_of_package

SHOP = vfl.Party("shop", np.arange(3.0)[:, None], ids=range(3))
RUNS = count()


def file(folder: Path) -> Path:
    path = folder / "file"
    path.write_bytes(b"content")
    return path


@contextmanager
def asked_about(folder: Path) -> Iterator[None]:
    """Hold a lock, and ask whether it is held, before and after it ends."""
    locks = ProcessLocks(folder / "locks")
    with locks.hold() as name:
        assert locks.is_held(name)
        yield
    assert not locks.is_held(name)


@contextmanager
def abandoned(folder: Path) -> Iterator[None]:
    """Leave the files of two locks as a killed process does; the next processes remove them."""
    locks = ProcessLocks(folder / "locks")
    (one, first), (_, second) = locks.create(), locks.create()
    os.close(first)
    os.close(second)
    yield
    assert not locks.is_held(one)
    locks.remove_stale(())


@contextmanager
def reserved(folder: Path) -> Iterator[None]:
    ledger, session = DisclosureLedger(folder / "shop.ledger", "shop"), (f"run {next(RUNS)}", "")
    planned = [Disclosure("columns", "bank", ("shop",), 1, 100)]
    reservation = ledger.reserve(SHOP.register, session, planned, lambda before: None, ahead=[])
    try:
        yield
    finally:
        reservation.settle([])


@contextmanager
def not_reserved(folder: Path) -> Iterator[None]:
    """Fail to write a reservation, because one of its disclosures cannot be stored."""
    ledger, session, unwritable = DisclosureLedger(folder / "shop.ledger", "shop"), ("run", ""), object()
    with pytest.raises(TypeError):
        ledger.reserve(SHOP.register, session, [], lambda before: None, ahead=[unwritable])  # type: ignore[list-item]
    yield


@contextmanager
def stored(folder: Path) -> Iterator[None]:
    """Store a table, and fail to store another one."""
    source, bad = folder / "shop.csv", folder / "bad.csv"
    source.write_text(f"id,x\n1,{next(RUNS)}\n2,-1\n")
    bad.write_text("id,x\n1,2\n1,3\n")
    store_table("shop", source, folder / "shop.table")
    with pytest.raises(DataError):
        store_table("shop", bad, folder / "bad.table")
    yield


@contextmanager
def prepared(folder: Path) -> Iterator[None]:
    with closing(DiskStore(folder / "ahead")):
        yield
    check_unlocked(folder / "ahead")


LOCKS: dict[str, dict[str, Callable[[Path], AbstractContextManager[object]]]] = {
    "account/process_locks.py": {
        "a block": lambda folder: ProcessLocks(folder / "locks").hold(),
        "a question": asked_about,
        "killed processes": abandoned,
        "rows to score": lambda folder: ScoreLedger(folder / "scores").claim(),
        "a reservation": reserved,
        "a failed reservation": not_reserved,
    },
    "base/file_locks.py": {
        "shared": lambda folder: shared_locks(file(folder), folder / "missing"),
        "exclusive": lambda folder: exclusive_lock(file(folder)),
        "a path": lambda folder: reserved_path(folder / "new"),
        "a comparison": lambda folder: exclusive_comparison(DisclosureLedger(folder / "shop.ledger", "shop")),
    },
    "data/store.py": {"a table": stored},
    "protocols/shares/disk_store.py": {"preprocessing": prepared},
}
"""For each module that locks files, context managers that use its locks in a folder."""


def use(lock: Callable[[Path], AbstractContextManager[object]], folder: Path) -> None:
    with lock(folder):
        pass
    with suppress(KeyError), lock(folder):
        raise KeyError
    with lock(folder), suppress(ConfigError), lock(folder):
        pass


def open_descriptors() -> int:
    gc.collect()  # closes the files of objects that are no longer used
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(sys.platform != "linux", reason="counts the open descriptors as Linux lists them")
@pytest.mark.parametrize(("module", "name"), [(module, name) for module, uses in LOCKS.items() for name in uses])
def test_a_lock_leaves_no_descriptor_and_no_file(module: str, name: str, tmp_path: Path) -> None:
    use(LOCKS[module][name], tmp_path)  # creates the files that remain, such as the ledger
    descriptors, files = open_descriptors(), set(tmp_path.rglob("*"))
    use(LOCKS[module][name], tmp_path)
    assert open_descriptors() <= descriptors
    assert set(tmp_path.rglob("*")) == files


def test_every_module_that_locks_files_is_among_them() -> None:
    locking = {
        str(path.relative_to(PACKAGE))
        for path in files_of_package()
        if "import lock_exclusive" in path.read_text(encoding="utf-8")
    }
    assert locking == set(LOCKS)
