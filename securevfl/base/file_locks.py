"""Advisory locks on files, so that two processes do not change one file at the same time."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from securevfl.errors import ConfigError


@contextmanager
def shared_locks(*paths: Path) -> Iterator[None]:
    """Hold shared locks on files while the block runs, which exclude an `exclusive_lock`; missing files are skipped."""
    with ExitStack() as marks:
        for path in paths:
            with suppress(OSError):
                marks.enter_context(_marked(path, fcntl.LOCK_SH))
        yield


@contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Have a file that no other process has `shared_locks` while the block runs. ConfigError if one has."""
    with ExitStack() as marks:
        try:
            marks.enter_context(_marked(path, fcntl.LOCK_EX | fcntl.LOCK_NB))
        except BlockingIOError:
            raise ConfigError(f"{path}: a file that no command uses was expected, one does; stop it first") from None
        except FileNotFoundError:
            pass
        yield


@contextmanager
def _marked(path: Path, how: int) -> Iterator[None]:
    if not path.is_file():  # a pipe is not opened twice
        yield
        return
    with path.open("rb") as file:
        fcntl.flock(file, how)
        yield
