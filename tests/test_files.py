"""Files that are there whole or not at all."""

import os
import stat
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from securevfl.base.files import atomic_writer, check_writable, restrict_to_owner, write_atomic
from securevfl.base.machine import single_threaded_blas
from securevfl.base.spill_file import SpillFile
from securevfl.errors import ConfigError, StorageError
from tests.forked import run_forked

KILLED = """
import os, sys
from pathlib import Path
from securevfl.errors import ConfigError, StorageError
from securevfl.base.files import check_writable, write_whole, writing_whole
os.fsync = lambda file: os.kill(os.getpid(), 9)
write_whole(Path(sys.argv[1]), b"half")
"""


@pytest.mark.skipif(os.name != "posix", reason="drafts are told by signal 0")
def test_the_draft_of_a_killed_process_goes_with_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    process = run_forked([sys.executable, "-c", KILLED, str(path)], check=False)
    assert process.returncode == -9
    (draft,) = tmp_path.iterdir()
    assert draft.name.startswith(".model.json.")
    others = [f".model.json.{os.getppid()}", f".model.json.{10**30}", ".model.json.old", f".other{draft.suffix}"]
    for name in others:
        (tmp_path / name).write_bytes(b"")
    write_atomic(path, b"whole")
    assert path.read_bytes() == b"whole"
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([*others, path.name])


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.json"
    write_atomic(path, b"old")

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"model.json: .*No space left on device.*make room"):
        write_atomic(path, b"new")
    assert [each.name for each in tmp_path.iterdir()] == ["model.json"]
    assert path.read_bytes() == b"old"
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_is_no_regular_file_is_written_and_stays(tmp_path: Path) -> None:
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    check_writable(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    write_atomic(pipe, b"whole")
    reader.join(60)
    assert got == [b"whole"]
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    assert [each.name for each in tmp_path.iterdir()] == ["pipe"]


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """A device of its own on which nothing has room."""
    path = tmp_path / "full"
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 7))
        path.write_bytes(b"")
    except OSError:
        pytest.skip("devices are made by root alone")
    return path


def test_a_device_is_not_replaced_and_what_it_lacks_is_told(full: Path) -> None:
    check_writable(full)
    with pytest.raises(StorageError, match=r"full: .*No space left on device.*make room"):
        write_atomic(full, b"whole")
    assert stat.S_ISCHR(full.lstat().st_mode)


def test_a_link_stays_and_its_file_is_written_whole(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link, target = tmp_path / "link", tmp_path / "there" / "model.json"
    link.symlink_to(target)
    for content in (b"first", b"second"):  # the target is not there, then it is
        check_writable(link)
        write_atomic(link, content)
        assert link.is_symlink()
        assert target.read_bytes() == content
    assert target.stat().st_mode & 0o777 == 0o600
    target.unlink()
    target.mkdir()
    with pytest.raises(ConfigError, match="a file was expected"):
        check_writable(link)
    with pytest.raises(StorageError, match="directory"):
        write_atomic(link, b"third")


def test_errors_of_another_file_are_not_those_of_the_file_that_is_written(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), atomic_writer(tmp_path / "out"):
        (tmp_path / "nowhere").read_bytes()
    assert not list(tmp_path.iterdir())


def test_folders_that_are_made_for_a_file_are_closed_to_others(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    write_atomic(tmp_path / "open" / "states" / "deep" / "state.json", b"secret")
    modes = [path.stat().st_mode & 0o777 for path in sorted((tmp_path / "open").rglob("*"))]
    assert modes == [0o700, 0o700, 0o600]
    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o755
    restrict_to_owner(tmp_path / "open")
    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("full", [False, True])
def test_a_spool_gives_back_what_was_put_or_nothing(
    tmp_path: Path, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = SpillFile[int](tmp_path / "ahead")
    put = [(np.arange(6, dtype=np.int16).reshape(2, 3), np.full((1, 2), 7, np.int32)), (np.zeros((0, 3)),)]
    if full:
        monkeypatch.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(28, "no space")))
    for key, arrays in enumerate(put):
        kept.put(key, arrays)
    assert not list((tmp_path / "ahead").iterdir())  # it has no name
    for key, arrays in enumerate(put[: 0 if full else None]):
        found = kept.get(key)
        assert found is not None
        for one, other in zip(found, arrays, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)
    assert kept.get(0 if full else 2) is None


def test_linear_algebra_has_its_threads_back_after_the_last_of_several() -> None:
    def threads() -> list[int]:
        return [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]

    with threadpool_limits(2, user_api="blas"):
        first, second = single_threaded_blas(), single_threaded_blas()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert set(threads()) == {1}
        second.__exit__(None, None, None)
        assert set(threads()) == {2}
