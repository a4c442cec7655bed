"""Check before a run that all files it needs can be written, and that their disks have enough free space."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from securevfl.errors import ConfigError, StorageError

MIN_FREE_BYTES = 1 << 24
"""Free bytes that every file of a run needs in addition to its own size, for drafts, locks and file system blocks."""


def check_disks(needs: Mapping[Path, int]) -> None:
    """Check that files can be created at these paths, and that their disks have enough free space for all of them.

    A trial file is created and removed in the folder of each path, because permissions alone do not show that a file
    system is read-only or that a quota of files is exhausted.

    Args:
        needs: the maximum number of bytes that the run writes at each path. A path may be a file or a folder, and need
            not exist yet.

    Raises:
        StorageError: a file cannot be created in a folder.
        ConfigError: a disk has too little free space.
    """
    by_disk: dict[int, tuple[Path, int]] = {}
    for path, size in needs.items():
        if path.exists() and not (path.is_file() or path.is_dir()):
            continue  # a pipe or a device
        folder = existing_folder(path)
        try:
            _create_trial(folder)
        except OSError as cause:
            raise StorageError(path, cause) from None
        disk = folder.stat().st_dev
        first, so_far = by_disk.get(disk, (path, 0))
        by_disk[disk] = first, so_far + size + MIN_FREE_BYTES
    for path, size in by_disk.values():
        free = shutil.disk_usage(existing_folder(path)).free
        if free < size:
            raise ConfigError(
                f"the disk of {path} has {free / 1e6:,.0f} MB of free space, and this command needs {size / 1e6:,.0f} "
                "MB there",
                "free space, or name a path on another disk",
                code="SVFL-FILE-NO-SPACE",
                path=str(path),
            )


def existing_folder(path: Path) -> Path:
    """Return the folder in which a path is or would be created; the path itself if it is a folder."""
    path = Path(os.path.realpath(path))
    folder = path if path.is_dir() else path.parent
    while not folder.exists():
        folder = folder.parent
    return folder


def _create_trial(folder: Path) -> None:
    """Create and remove a file in a folder, or raise OSError."""
    trial = folder / f".securevfl-trial.{os.getpid()}.{threading.get_ident()}"
    try:
        os.close(os.open(trial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    finally:
        with suppress(OSError):
            trial.unlink(missing_ok=True)
