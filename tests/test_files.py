"""Files that are there whole or not at all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from securevfl.files import write_whole

KILLED = """
import os, sys
from pathlib import Path
from securevfl.files import write_whole
os.fsync = lambda file: os.kill(os.getpid(), 9)
write_whole(Path(sys.argv[1]), b"half")
"""


@pytest.mark.skipif(os.name != "posix", reason="drafts are told by signal 0")
def test_the_draft_of_a_killed_process_goes_with_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    process = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert process.returncode == -9
    (draft,) = tmp_path.iterdir()
    assert draft.name.startswith(".model.json.")
    others = [f".model.json.{os.getppid()}", f".model.json.{10**30}", ".model.json.old", f".other{draft.suffix}"]
    for name in others:
        (tmp_path / name).write_bytes(b"")
    write_whole(path, b"whole")
    assert path.read_bytes() == b"whole"
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([*others, path.name])


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.json"
    write_whole(path, b"old")

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"new")
    assert [each.name for each in tmp_path.iterdir()] == ["model.json"]
    assert path.read_bytes() == b"old"
    assert path.stat().st_mode & 0o777 == 0o600
