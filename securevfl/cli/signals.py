"""End a command when its operator stops it, with Ctrl-C or with SIGTERM as a service manager does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import typer


@contextmanager
def exit_on_signal(describe_stored: Callable[[], str] | None = None) -> Iterator[None]:
    """End the command with exit code 128 + the signal, after the other parties have been notified.

    Within the context both signals raise KeyboardInterrupt.

    Args:
        describe_stored: describes the files from which the command can resume.

    Yields:
        Nothing.
    """
    received = signal.SIGINT

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal received
        received = signal.Signals(number)
        raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, stop) if main else None
    try:
        yield
    except KeyboardInterrupt:
        stored = "" if describe_stored is None else f"; {describe_stored()}"
        purpose = "start again" if describe_stored is None else "resume"
        typer.echo(
            f"stopped by {received.name}{stored}. Run the same command again at every party to {purpose}.", err=True
        )
        raise typer.Exit(128 + received) from None
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)
