"""A background thread of a party, which shares the party's channel. Its time is measured apart from the party's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from securevfl.runtime.channel import Channel

T = TypeVar("T")


class BackgroundTask(Generic[T]):
    """A function that runs in a new thread from the creation of this object on.

    The thread's time is measured on a separate path (`Clock.fork`); `join` continues with the longer of both paths. An
    error in the thread ends all waits on the channel, so that no other thread of the party waits in vain, and `join`
    raises it. When the party stops, the thread stops at its next operation on the channel, or when its work is done.

    Args:
        channel: the party's channel.
        work: the function that the thread runs.
        name: name of the thread, for debugging.
    """

    def __init__(self, channel: Channel, work: Callable[[], T], name: str) -> None:
        self._channel = channel
        self._branch = channel.clock.fork()
        self._error: BaseException | None = None
        self._results: list[T] = []
        self._thread = threading.Thread(target=self._run, args=(work,), name=f"{channel.me}: {name}", daemon=True)
        self._thread.start()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the thread for at most `timeout` seconds; return whether it has finished, or raise its error."""
        self._channel.clock.join(self._branch, partial(self._thread.join, timeout))
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()

    def result(self) -> T:
        """Wait for the thread and return the function's result, or raise its error."""
        self.join()
        return self._results[0]

    def _run(self, work: Callable[[], T]) -> None:
        with self._channel.clock.along(self._branch):
            try:
                self._results.append(work())
            except BaseException as error:
                self._error = error
                self._channel.fail(error)
