"""End a command when its operator stops it, with Ctrl-C or with SIGTERM as a service manager does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    pass


@contextmanager
def exit_on_signal(keeps: Callable[[], str] | None = None) -> Iterator[None]:
    """End the command with exit code 128 + the signal, once the other parties have been told.

    keeps: says what is on disk to go on from. Within the block both signals raise KeyboardInterrupt.
    """
    got = signal.SIGINT

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal got
        got = signal.Signals(number)
        raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, stop) if main else None
    try:
        yield
    except KeyboardInterrupt:
        kept = "" if keeps is None else f"; {keeps()}"
        on = "start again" if keeps is None else "go on"
        typer.echo(f"stopped by {got.name}{kept}. Run the same command again, at every party, to {on}.", err=True)
        raise typer.Exit(128 + got) from None
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)
