"""Checks of free space and of folders before a run, against the real free space of this machine."""

import os
import shutil
from pathlib import Path

from securevfl.base.disk_space import check_disks
from securevfl.errors import ConfigError, StorageError
from tests.builders import raises_code


def test_the_needs_of_all_paths_on_a_disk_add_up(tmp_path: Path) -> None:
    most = int(0.6 * shutil.disk_usage(tmp_path).free)
    check_disks({tmp_path / "one" / "file": most})
    with raises_code(ConfigError, "SVFL-FILE-NO-SPACE"):
        check_disks({tmp_path / "one" / "file": most, tmp_path / "other": most})
    assert not list(tmp_path.iterdir())


def test_a_folder_in_which_no_file_can_be_created_is_refused(tmp_path: Path) -> None:
    """Root may write everywhere by its permissions; /proc accepts no files from anybody."""
    (tmp_path / "file").write_bytes(b"")
    for path in (Path("/proc/securevfl"), tmp_path / "file" / "below"):
        with raises_code(StorageError, "SVFL-FILE-UNUSABLE"):
            check_disks({path: 0})


def test_pipes_and_devices_need_no_space(tmp_path: Path) -> None:
    too_much = 2 * shutil.disk_usage(tmp_path).total
    os.mkfifo(tmp_path / "pipe")
    check_disks({tmp_path / "pipe": too_much, Path(os.devnull): too_much})
