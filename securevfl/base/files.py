"""Files that are there whole or not at all, and are what was written; and JSON.

What a party reads again, such as a state or a part of a model, has a digest of itself inside: a bit that has changed on
disk would otherwise change weights or predictions, and nobody would see it.
"""

from __future__ import annotations

import errno
import glob
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from securevfl.errors import ConfigError, StorageError


def write_atomic(path: Path, data: bytes) -> None:
    """Write through a temporary file in the same folder and rename it. Only the owner may read the result.

    Drafts that killed processes have left behind are removed first. A link stays one: what it points to is written.
    What is no regular file, as a pipe or a device, is written as it is. StorageError if it cannot be written, or is
    read back as something else.
    """
    with atomic_writer(path, whole=data) as file:
        file.write(data)


@contextmanager
def atomic_writer(path: Path, *, whole: bytes | None = None) -> Iterator[BinaryIO]:
    """`write_atomic` piece by piece: the file takes its name when the block ends, and is dropped if the block raises.

    whole: what it is read back as before it takes its name, if that is known.
    """
    path = _target(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if _is_special(path):
            with path.open("wb") as file:
                yield file
            return
        make_private_folder(path.parent)
        _remove_left_behind(path)
        try:
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if whole is not None and draft.read_bytes() != whole:
                raise OSError(errno.EIO, "what was written is read back as something else", str(draft))
            draft.replace(path)
            sync_folder(path.parent)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as cause:
        if cause.filename not in (None, str(draft), str(path), str(path.parent)):
            raise  # of another file that the block has used
        raise StorageError(path, cause) from None


def append_atomic(file: int, data: bytes, path: Path) -> None:
    """Append to a file that is open to be read and written: all of it, flushed and read back, or nothing.

    path: what the file is called. StorageError if it cannot be written.
    """
    end = os.lseek(file, 0, os.SEEK_END)
    try:
        left = memoryview(data)
        while left:  # a disk that is nearly full takes a part
            left = left[os.write(file, left) :]
        os.fsync(file)
        if os.pread(file, len(data), end) != data:
            raise OSError(errno.EIO, "what was written is read back as something else")
    except OSError as cause:
        with suppress(OSError):
            os.ftruncate(file, end)
        raise StorageError(path, cause) from None


def make_private_folder(folder: Path) -> None:
    """Make a folder and those above it that are missing, closed to others; what is there stays as it is."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)


def restrict_to_owner(folder: Path) -> None:
    """Make a folder for secrets, or takes the rights of others from it. StorageError if it is somebody else's."""
    try:
        make_private_folder(folder)
        if folder.stat().st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as cause:
        raise StorageError(folder, cause) from None


def _target(path: Path) -> Path:
    """Return what a link points to, there or not; any other path as it is."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _is_special(path: Path) -> bool:
    """Whether there is a pipe, a device or another thing that a file must not take the place of."""
    return path.exists() and not path.is_file() and not path.is_dir()


def sync_folder(folder: Path) -> None:
    """Flush the folder to disk too, so that a file that has its name keeps it through a loss of power."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_left_behind(path: Path) -> None:
    """Remove drafts of this file by processes that are no more. Elsewhere than on POSIX signal 0 would end them."""
    if os.name != "posix":
        return
    for draft in path.parent.glob(f".{glob.escape(path.name)}.*"):
        writer = draft.name.removeprefix(f".{path.name}.")
        if writer.isdecimal() and not _runs(int(writer)):
            draft.unlink(missing_ok=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def check_writable(*paths: Path | None, folder: bool = False) -> None:
    """ConfigError unless a file (or a folder with files) can be written at each of these places; None is none."""
    for path in filter(None, paths):
        path = _target(path)
        if path.exists() and path.is_dir() != folder:
            raise ConfigError(f"{path}: a {'folder' if folder else 'file'} was expected there; name another path")
        place = path.absolute() if folder or _is_special(path) else path.absolute().parent
        while not place.exists():
            place = place.parent
        wanted = os.W_OK if _is_special(place) else os.W_OK | os.X_OK
        if not (place.is_dir() or _is_special(place)) or not os.access(place, wanted):
            raise ConfigError(f"{path}: a place that can be written was expected, {place} is none; name another path")


def write_json(path: Path, value: Any) -> None:
    """Strict JSON, whole or not at all; figures that are none (NaN) become null."""
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
