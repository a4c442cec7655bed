"""Locks on files by path, so that no command changes a file that another command uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from securevfl.base.platform_files import lock_exclusive, lock_shared
from securevfl.errors import ConfigError


@contextmanager
def shared_locks(*paths: Path) -> Iterator[None]:
    """Hold shared locks on files while the block runs. Missing files and pipes are skipped."""
    with ExitStack() as files:
        for path in paths:
            with suppress(OSError):
                if path.is_file():  # a pipe must not be opened twice: its data can be read only once
                    lock_shared(files.enter_context(path.open("rb")))
        yield


@contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file while the block runs; a missing file or a pipe is not locked.

    Args:
        path: the file.

    Yields:
        Nothing.

    Raises:
        ConfigError: if another command has a lock on the file.
    """
    with ExitStack() as files:
        try:
            if path.is_file():
                lock_exclusive(files.enter_context(path.open("rb")), wait=False)
        except BlockingIOError:
            raise ConfigError(
                f"{path} is in use by another command",
                "stop that command first",
                code="SVFL-FILE-IN-USE",
                path=str(path),
            ) from None
        except FileNotFoundError:
            pass
        yield
