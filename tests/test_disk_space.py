"""Checks of free space and of folders before a run."""

import os
import shutil
from pathlib import Path

import pytest

from securevfl.base.disk_space import MIN_FREE_BYTES, check_disks
from securevfl.errors import ConfigError, StorageError
from tests.builders import raises_code


def test_the_needs_of_all_paths_on_a_disk_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    needs = {tmp_path / "one" / "file": 1000, tmp_path / "other": 500}
    for free, enough in ((2 * MIN_FREE_BYTES + 1500, True), (2 * MIN_FREE_BYTES + 1499, False)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: usage._replace(free=free))
        if enough:
            check_disks(needs)
        else:
            with raises_code(ConfigError, "SVFL-FILE-NO-SPACE"):
                check_disks(needs)
    assert not list(tmp_path.iterdir())


def test_a_folder_in_which_no_file_can_be_created_is_refused(tmp_path: Path) -> None:
    """Root may write everywhere by its permissions; /proc accepts no files from anybody."""
    (tmp_path / "file").write_bytes(b"")
    for path in (Path("/proc/securevfl"), tmp_path / "file" / "below"):
        with raises_code(StorageError, "SVFL-FILE-UNUSABLE"):
            check_disks({path: 0})


def test_pipes_and_devices_need_no_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=0))
    os.mkfifo(tmp_path / "pipe")
    check_disks({tmp_path / "pipe": 1000, Path(os.devnull): 1000})
