"""Parties as threads of one process. Every message is encoded and decoded as it would be between machines."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

from securevfl.errors import SecureVFLError, TransportError
from securevfl.runtime.channel import Channel, Event, Inbox
from securevfl.runtime.clock import Books, Clock, Kind, Stamp
from securevfl.runtime.codec import SESSION_BYTES

T = TypeVar("T")


class ThreadWire:
    """Puts a frame straight into the receiver's inbox."""

    def __init__(self, me: str, inboxes: Mapping[str, Inbox]) -> None:
        self._me = me
        self._inboxes = inboxes

    def post(self, to: str, frame: bytes, stamp: Stamp | None) -> None:
        if to not in self._inboxes:
            raise TransportError(f"{self._me}: a party of this run was expected as receiver, {to!r} is none")
        self._inboxes[to].deliver(frame, stamp, peer=self._me)


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
            ThreadWire(name, inboxes), inboxes[name], clocks[name], Books(), timeout=timeout, observe=observe
        )
        channel.clock.tick(Kind.LOCAL)
        try:
            results[name] = role(channel)
        except BaseException as error:
            failures.append(error)
            text = str(error) if isinstance(error, SecureVFLError) else type(error).__name__
            channel.abort([peer for peer in roles if peer != name], text)

    threads = [threading.Thread(target=play, args=item, name=item[0], daemon=True) for item in roles.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return {name: results[name] for name in roles}
