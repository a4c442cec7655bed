"""Run several parties as threads of one process, with messages encoded exactly as between separate computers."""

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
    """Run every party's function in a thread of its own and return the results by party.

    If one party fails, the others receive its reason and stop, and its error is raised here.

    Args:
        roles: by party, the function that it runs.
        clock: the clocks by party, or a function that creates one.
        timeout: seconds that each party waits for a message.
        observe: receives every message of every party.

    Returns:
        The results by party.
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
