"""Parties as threads of one process. Every message is encoded and decoded as it would be between machines."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Generic, TypeVar

from securevfl.runtime.channel import Channel, Event, Inbox, InboxWire
from securevfl.runtime.clock import Books, Clock, Kind
from securevfl.runtime.codec import SESSION_BYTES

T = TypeVar("T")


def run_threads(
    roles: Mapping[str, Callable[[Channel], T]],
    clock: Callable[[], Clock] | Mapping[str, Clock],
    *,
    timeout: float = 600.0,
    observe: Callable[[Event], None] | None = None,
) -> dict[str, T]:
    """Run every party's role in a thread of its own and return what each returned.

    clock: makes one for each party, or is each party's own by name.
    If one fails the others are told and stop; its error is raised here.
    """
    session = secrets.token_bytes(SESSION_BYTES)
    inboxes = {name: Inbox(name, [peer for peer in roles if peer != name], session) for name in roles}
    clocks = clock if isinstance(clock, Mapping) else {name: clock() for name in roles}
    results: dict[str, T] = {}
    failures: list[BaseException] = []

    def play(name: str, role: Callable[[Channel], T]) -> None:
        channel = Channel(
            InboxWire(name, inboxes), inboxes[name], clocks[name], Books(), timeout=timeout, observe=observe
        )
        channel.clock.tick(Kind.LOCAL)
        try:
            results[name] = role(channel)
        except BaseException as error:
            failures.append(error)
            channel.abort([peer for peer in roles if peer != name], error)

    threads = [threading.Thread(target=play, args=item, name=item[0], daemon=True) for item in roles.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return {name: results[name] for name in roles}


# A second thread of one party, over the same channel: its own path in time, its errors the party's.


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
