"""End a command when somebody stops it: by Ctrl-C, or by SIGTERM, which a service manager sends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import typer


@contextmanager
def exit_on_signal(describe_stored: Callable[[], str] | None = None) -> Iterator[None]:
    """End the command with exit code 128 + signal number on Ctrl-C or SIGTERM; the other parties are notified first.

    Within the context both signals raise KeyboardInterrupt.

    Args:
        describe_stored: describes the files from which the command can resume; empty if no such file exists.

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
        stored = "" if describe_stored is None else describe_stored()
        again = f"Run the same command again at every party to {'resume' if stored else 'start again'}."
        typer.echo(f"stopped by {received.name}{f'; {stored}' if stored else ''}. {again}", err=True)
        raise typer.Exit(128 + received) from None
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)


@dataclass
class StopRequest:
    """Records that an operator has asked a service to end, by Ctrl-C or SIGTERM.

    Attributes:
        signal: the first signal that has arrived; None before that.
    """

    signal: signal.Signals | None = None

    @property
    def arrived(self) -> bool:
        """Whether a signal has arrived."""
        return self.signal is not None

    @property
    def cause(self) -> str:
        """The name of the signal, or "an error" if the service ended without one."""
        return "an error" if self.signal is None else self.signal.name


@contextmanager
def service_signals(is_busy: Callable[[], bool]) -> Iterator[StopRequest]:
    """Let SIGTERM and Ctrl-C end a service without interrupting a request that is being processed.

    If no request is being processed, the first signal ends the `with` block at once. Otherwise it is only recorded, and
    the service ends after its requests. A second signal ends the command at once, with exit code 1 if it was busy.

    Args:
        is_busy: function that returns whether requests are being processed.

    Yields:
        An object that states whether a signal has arrived.
    """
    request = StopRequest()

    def stop(number: int, frame: FrameType | None) -> None:
        repeated, request.signal = request.arrived, signal.Signals(number)
        if repeated or not is_busy():
            raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield request
    except KeyboardInterrupt:
        if is_busy():
            raise typer.Exit(1) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
