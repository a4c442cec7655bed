"""The file of used chunks on a full disk, truncated and damaged."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from securevfl.base.files import write_atomic
from securevfl.errors import ConfigError, StorageError
from securevfl.protocols.shares.spent_chunks import SpentChunks
from tests.builders import raises_code
from tests.forked import run_forked

NAMES = [bytes([k]) * 16 for k in range(1, 6)]

FULL = """
import resource, sys
from pathlib import Path
from securevfl.errors import StorageError
from securevfl.protocols.shares.spent_chunks import SpentChunks
path, room = Path(sys.argv[1]), int(sys.argv[2])
names = SpentChunks(path)
names.spend(bytes(16))
resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + room, resource.RLIM_INFINITY))
try:
    names.spend(b"1" * 16)
    print("passed as written")
except StorageError as error:
    print("refused", names.contains(b"1" * 16))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
names.spend(b"2" * 16)
"""


@pytest.mark.parametrize("room", [0, 10, 40])
def test_a_name_without_disk_space_is_not_spent(room: int, tmp_path: Path) -> None:
    """Simulate a full disk: the file grows by at most this number of bytes, so the first write is partial."""
    path = tmp_path / "names"
    done = run_forked([sys.executable, "-c", FULL, str(path), str(room)], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("refused False\n", "")
    names = SpentChunks(path)
    assert [names.contains(item) for item in (bytes(16), b"1" * 16, b"2" * 16)] == [True, False, True]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    for name in NAMES[:3]:
        SpentChunks(tmp_path / "names").spend(name)
    return tmp_path / "names"


def test_a_last_line_that_is_cut_off_is_dropped_and_never_glued(path: Path) -> None:
    content = path.read_bytes()
    last = content.rstrip(b"\n").rfind(b"\n") + 1
    for cut in range(last, len(content)):
        path.write_bytes(content[:cut])
        names = SpentChunks(path)
        assert [names.contains(name) for name in NAMES] == [True, True, False, False, False]
        names.spend(NAMES[3])
        again = SpentChunks(path)
        assert [again.contains(name) for name in NAMES] == [True, True, False, True, False]


def test_any_bit_that_is_not_as_it_was_written_is_noticed(path: Path) -> None:
    """A name that is forgotten would be masks that are used twice."""
    content = path.read_bytes()
    for at in range(len(content)):
        for bit in (0, 2, 5):
            path.write_bytes(content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :])
            with raises_code(ConfigError, "SVFL-FILE-DAMAGED"):
                SpentChunks(path).contains(NAMES[0])
    for spoilt in (content[50:], content[:50] + content[100:], content * 2, b"\n" + content, content + b"\n"):
        path.write_bytes(spoilt)
        with raises_code(ConfigError, "SVFL-FILE-DAMAGED"):
            SpentChunks(path).spend(NAMES[4])


def test_what_is_read_back_as_something_else_is_not_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a disk that loses bits: neither a list that grows nor a file that is written whole."""
    content, read = path.read_bytes(), os.pread

    def loses(file: int, count: int, at: int) -> bytes:
        return bytes(reversed(read(file, count, at)))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", loses)
        with raises_code(StorageError, "SVFL-FILE-UNUSABLE"):
            SpentChunks(path).spend(NAMES[3])
    assert path.read_bytes() == content
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", lambda path: b"")
        with raises_code(StorageError, "SVFL-FILE-UNUSABLE"):
            write_atomic(path, b"another")
    assert path.read_bytes() == content
