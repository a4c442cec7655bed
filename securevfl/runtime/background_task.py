"""A second thread of one party, over the same channel: its own path in time, its errors the party's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Generic

from securevfl.runtime.channel import Channel
from securevfl.runtime.party_threads import T


class BackgroundTask(Generic[T]):
    """Work that runs in a thread of its own from now on, beside the thread that makes this.

    Its time goes along a path of its own (`Clock.fork`), which `join` brings together with the caller's. Whatever it
    raises fails the channel at once, so that no thread of the party waits on, and is raised by `join`. It ends with
    the channel too: what it waits for there raises when the party stops.
    """

    def __init__(self, channel: Channel, work: Callable[[], T], name: str) -> None:
        self._channel = channel
        self._branch = channel.clock.fork()
        self._error: BaseException | None = None
        self._made: list[T] = []
        self._thread = threading.Thread(target=self._run, args=(work,), name=f"{channel.me}: {name}", daemon=True)
        self._thread.start()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the thread has finished, for at most `timeout` seconds, and say whether it has. Raises what it has
        raised."""
        self._channel.clock.join(self._branch, partial(self._thread.join, timeout))
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()

    def result(self) -> T:
        """Wait for the thread's work and return what it has made. Raises what it has raised."""
        self.join()
        return self._made[0]

    def _run(self, work: Callable[[], T]) -> None:
        with self._channel.clock.along(self._branch):
            try:
                self._made.append(work())
            except BaseException as error:
                self._error = error
                self._channel.fail(error)
