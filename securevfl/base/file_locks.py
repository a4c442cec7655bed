"""Advisory locks on files, so that two processes do not change one file at the same time."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from securevfl.errors import ConfigError


@contextmanager
def in_use(*paths: Path) -> Iterator[None]:
    """Mark files as used while the block runs, so that nobody has them `alone`; one that is not there is not marked."""
    with ExitStack() as marks:
        for path in paths:
            with suppress(OSError):
                marks.enter_context(_marked(path, fcntl.LOCK_SH))
        yield


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Have a file that no other process has `in_use` while the block runs. ConfigError if one has."""
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
