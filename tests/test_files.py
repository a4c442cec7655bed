"""Atomic writes, locks, spill files and BLAS threads of `securevfl.base`."""

import os
import stat
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from securevfl.base import spill_file
from securevfl.base.file_locks import exclusive_lock, shared_locks
from securevfl.base.files import atomic_writer, check_writable, restrict_to_owner, write_atomic
from securevfl.base.machine import single_threaded_blas
from securevfl.base.platform_files import lock_exclusive, lock_shared, read_at, read_into, write_at
from securevfl.base.spill_file import SpillFile
from securevfl.errors import ConfigError, StorageError
from tests.builders import raises_code
from tests.forked import run_forked

KILLED = """
import os, sys
from pathlib import Path
from securevfl.base.files import write_atomic
os.fsync = lambda file: os.kill(os.getpid(), 9)
write_atomic(Path(sys.argv[1]), b"half")
"""


@pytest.mark.skipif(os.name != "posix", reason="signal 0 detects running processes on POSIX only")
def test_the_next_write_removes_drafts_of_killed_processes(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    process = run_forked([sys.executable, "-c", KILLED, str(path)], check=False)
    assert process.returncode == -9
    (draft,) = tmp_path.iterdir()
    assert draft.name.startswith(".model.json.")
    others = [f".model.json.{os.getppid()}", f".model.json.{10**30}", ".model.json.old", f".other{draft.suffix}"]
    for name in others:
        (tmp_path / name).write_bytes(b"")
    write_atomic(path, b"complete")
    assert path.read_bytes() == b"complete"
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([*others, path.name])


def test_a_failing_write_leaves_the_previous_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.json"
    write_atomic(path, b"old")

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with raises_code(StorageError, "SVFL-FILE-NO-SPACE"):
        write_atomic(path, b"new")
    assert [file.name for file in tmp_path.iterdir()] == ["model.json"]
    assert path.read_bytes() == b"old"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_pipe_is_written_and_not_replaced(tmp_path: Path) -> None:
    pipe, received = tmp_path / "pipe", []
    os.mkfifo(pipe)
    check_writable(pipe)
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()))
    reader.start()
    write_atomic(pipe, b"complete")
    reader.join(60)
    assert received == [b"complete"]
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    assert [file.name for file in tmp_path.iterdir()] == ["pipe"]


@pytest.fixture
def full_device(tmp_path: Path) -> Path:
    """Return a device of this test that has no space."""
    path = tmp_path / "full"
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 7))
        path.write_bytes(b"")
    except OSError:
        pytest.skip("only root can create devices")
    return path


def test_a_full_device_is_reported_and_not_replaced(full_device: Path) -> None:
    check_writable(full_device)
    with raises_code(StorageError, "SVFL-FILE-NO-SPACE"):
        write_atomic(full_device, b"complete")
    assert stat.S_ISCHR(full_device.lstat().st_mode)


def test_a_symbolic_link_remains_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link, target = tmp_path / "link", tmp_path / "there" / "model.json"
    link.symlink_to(target)
    for content in (b"first", b"second"):  # the target is missing at first, then it exists
        check_writable(link)
        write_atomic(link, content)
        assert link.is_symlink()
        assert target.read_bytes() == content
    assert target.stat().st_mode & 0o777 == 0o600
    target.unlink()
    target.mkdir()
    with raises_code(ConfigError, "SVFL-FILE-WRONG-KIND"):
        check_writable(link)
    with raises_code(StorageError, "SVFL-FILE-UNUSABLE"):
        write_atomic(link, b"third")


def test_errors_about_another_file_are_not_converted(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), atomic_writer(tmp_path / "out"):
        (tmp_path / "nowhere").read_bytes()
    assert not list(tmp_path.iterdir())


def test_created_folders_are_closed_to_other_users(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    write_atomic(tmp_path / "open" / "states" / "deep" / "state.json", b"secret")
    modes = [path.stat().st_mode & 0o777 for path in sorted((tmp_path / "open").rglob("*"))]
    assert modes == [0o700, 0o700, 0o600]
    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o755
    restrict_to_owner(tmp_path / "open")
    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o700


def test_locks_exclude_each_other_between_open_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    with path.open("rb") as first, path.open("rb") as second:
        lock_shared(first)
        lock_shared(second, wait=False)
        with pytest.raises(BlockingIOError):
            lock_exclusive(second, wait=False)
    with path.open("rb") as first, path.open("rb") as second:  # closed files have released their locks
        lock_exclusive(first.fileno(), wait=False)
        with pytest.raises(BlockingIOError):
            lock_shared(second.fileno(), wait=False)


def test_an_exclusive_lock_reports_a_file_in_use(tmp_path: Path) -> None:
    path, missing = tmp_path / "file", tmp_path / "missing"
    path.write_bytes(b"content")
    with shared_locks(path, missing), raises_code(ConfigError, "SVFL-FILE-IN-USE"), exclusive_lock(path):
        pass
    with exclusive_lock(path), exclusive_lock(missing):
        pass


def test_reads_and_writes_at_an_offset_keep_the_position(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+b") as file:
        file.write(b"0123456789")
        file.flush()
        assert write_at(file.fileno(), b"ab", 3) == 2
        buffer = bytearray(4)
        assert read_into(file.fileno(), memoryview(buffer), 2) == 4
        assert bytes(buffer) == b"2ab5" == read_at(file.fileno(), 4, 2)
        assert file.tell() == 10


@pytest.mark.parametrize("full", [False, True])
def test_a_spill_file_returns_stored_arrays_or_none(
    tmp_path: Path, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spill = SpillFile[int](tmp_path / "spilled")
    stored = [(np.arange(6, dtype=np.int16).reshape(2, 3), np.full((1, 2), 7, np.int32)), (np.zeros((0, 3)),)]
    if full:
        monkeypatch.setattr(spill_file, "write_at", lambda *_: (_ for _ in ()).throw(OSError(28, "no space")))
    for key, arrays in enumerate(stored):
        spill.put(key, arrays)
    assert not list((tmp_path / "spilled").iterdir())  # the file has no name
    for key, arrays in enumerate(stored[: 0 if full else None]):
        restored = spill.get(key)
        assert restored is not None
        for one, other in zip(restored, arrays, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)
    assert spill.get(0 if full else 2) is None


def test_blas_threads_return_after_the_last_of_several_blocks() -> None:
    def threads() -> list[int]:
        return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

    with threadpool_limits(2, user_api="blas"):
        first, second = single_threaded_blas(), single_threaded_blas()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert set(threads()) == {1}
        second.__exit__(None, None, None)
        assert set(threads()) == {2}
