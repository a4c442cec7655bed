"""Atomic writes of files, private folders, and JSON."""

from __future__ import annotations

import errno
import glob
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from securevfl.errors import ConfigError, StorageError

STANDARD_OUTPUT = Path("/dev/stdout")
"""The path that stands for standard output; `securevfl.cli.party_options` reads "-" as this path."""


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file completely or not at all; only its owner can read it.

    The data goes to a temporary file in the same folder, which is read back and then renamed. Temporary files that
    killed processes have left are removed first. A symbolic link remains, and its target is written. Pipes and devices
    are written directly.

    Args:
        path: the file.
        data: its new content.

    Raises:
        StorageError: if the file cannot be written, or its content differs when it is read back.
    """
    with atomic_writer(path, content=data) as file:
        file.write(data)


@contextmanager
def atomic_writer(path: Path, *, content: bytes | None = None) -> Iterator[BinaryIO]:
    """Write a temporary file; it becomes `path` when the block ends, and is removed if the block raises.

    Args:
        path: path of the file, as in `write_atomic`.
        content: the complete content if it is known in advance; it is compared with the file after writing.

    Yields:
        The temporary file, open for writing.

    Raises:
        StorageError: if the file cannot be written, or its content differs when it is read back.
    """
    if path == STANDARD_OUTPUT:  # if stdout is a regular file, replacing it would lose earlier output
        with open(1, "wb", closefd=False) as file:
            yield file
        return
    path = _target(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if _is_special(path):
            with path.open("wb") as file:
                yield file
            return
        make_private_folder(path.parent)
        _remove_stale_drafts(path)
        try:
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if content is not None and draft.read_bytes() != content:
                raise OSError(errno.EIO, "the file read back differs from the data written", str(draft))
            draft.replace(path)
            sync_folder(path.parent)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as cause:
        if cause.filename not in (None, str(draft), str(path), str(path.parent)):
            raise  # the block failed on another file, which its own error names
        raise StorageError(path, cause) from None


def make_private_folder(folder: Path) -> None:
    """Create a folder and its missing parents, closed to other users. Existing folders are not changed."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)


def restrict_to_owner(folder: Path) -> None:
    """Create a folder for secrets, or remove the permissions of other users from it.

    Args:
        folder: the folder.

    Raises:
        StorageError: if the folder belongs to another user.
    """
    try:
        make_private_folder(folder)
        if folder.stat().st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as cause:
        raise StorageError(folder, cause) from None


def _target(path: Path) -> Path:
    """Return the target of a symbolic link, even if it does not exist; other paths are returned unchanged."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _is_special(path: Path) -> bool:
    """Return whether the path is a pipe, a device or something else that a file must not replace."""
    return path.exists() and not path.is_file() and not path.is_dir()


def sync_folder(folder: Path) -> None:
    """Flush a folder to disk, so that renamed and new files keep their names through a loss of power."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_stale_drafts(path: Path) -> None:
    """Remove temporary files that processes which no longer run have left for this file."""
    if os.name != "posix":  # elsewhere signal 0 would end the process
        return
    for draft in path.parent.glob(f".{glob.escape(path.name)}.*"):
        writer = draft.name.removeprefix(f".{path.name}.")
        if writer.isdecimal() and not _is_running(int(writer)):
            draft.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def check_writable(*paths: Path | None, folder: bool = False) -> None:
    """Check that files can be written at these paths.

    Args:
        *paths: the paths; None is skipped.
        folder: True if the paths are folders that files are written to.

    Raises:
        ConfigError: if a path is a folder instead of a file (or vice versa), or its folder cannot be written.
    """
    for path in filter(None, paths):
        if path == STANDARD_OUTPUT and not folder:
            continue
        path = _target(path)
        if path.exists() and path.is_dir() != folder:
            raise ConfigError(
                f"{path} is a {'file' if folder else 'folder'}, not a {'folder' if folder else 'file'}",
                "name another path",
                code="SVFL-FILE-WRONG-KIND",
                path=str(path),
            )
        parent = path.absolute() if folder or _is_special(path) else path.absolute().parent
        while not parent.exists():
            parent = parent.parent
        permissions = os.W_OK if _is_special(parent) else os.W_OK | os.X_OK
        if not (parent.is_dir() or _is_special(parent)) or not os.access(parent, permissions):
            raise ConfigError(
                f"{path} cannot be written, because {parent} is not a writable folder",
                "name another path",
                code="SVFL-FILE-UNUSABLE",
                path=str(path),
            )


def write_json(path: Path, value: Any) -> None:
    """Write a value as strict JSON, atomically; numbers that are not finite become null."""
    write_atomic(path, json.dumps(_finite(value), indent=2, allow_nan=False).encode() + b"\n")


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
    return value
