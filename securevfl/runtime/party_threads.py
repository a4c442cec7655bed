"""Parties as threads of one process. Every message is encoded and decoded as it would be between machines."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import Clock
from securevfl.runtime.codec import SESSION_BYTES
from securevfl.runtime.costs import CostCounters, Kind
from securevfl.runtime.inbox import Inbox, InboxWire
from securevfl.runtime.observer import Event

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
            InboxWire(name, inboxes), inboxes[name], clocks[name], CostCounters(), timeout=timeout, observe=observe
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
