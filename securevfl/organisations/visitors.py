"""Conversations of a party that stays up: several at once on one port, each in a thread of its own.

Whoever calls names its conversation, which begins with the first call and ends with all its threads when its parties
are through or one is lost: an asker that stops holds up nobody else. So many go on at a time; a few more wait, and the
others are told to come again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from securevfl.errors import ConfigError, PeerLost, TransportError
from securevfl.transport.line import Line

__all__ = ["Room", "Visitors"]

AGAIN = 5  # seconds after which one that was turned away may come again
_WAIT = 10.0  # seconds that a caller waits for room
_BEGINS = 10.0  # seconds for a conversation to take its callers
_OVER = 1024  # names of the last conversations


@dataclass(frozen=True)
class Room:
    """How many conversations go on at a time, and how many callers more wait for one to end; ConfigError unless one may
    go on."""

    at_once: int = 16
    waiting: int = 64

    def __post_init__(self) -> None:
        if self.at_once < 1 or self.waiting < 0:
            raise ConfigError(f"one conversation at a time or more was expected, {self.at_once} came; correct at_once")


class Visitors:
    """The conversations that go on at a party (a `transport.endpoint.Hall`).

    hold: holds the conversation of a name, in the calling thread, until it ends.
    """

    def __init__(self, me: str, hold: Callable[[str], None], room: Room) -> None:
        self._me, self._hold, self._most, self._room = me, hold, room.at_once, room.waiting
        self._threads: dict[str, threading.Thread] = {}
        self._lines: dict[str, Mapping[str, Line]] = {}
        self._over: deque[str] = deque(maxlen=_OVER)
        self._waiting, self._closed = 0, False
        self._changed = threading.Condition()

    @property
    def streams(self) -> int:
        """How many callers there may be about, with those that wait, of one other party."""
        return self._most + self._room

    def line_of(self, conversation: str, name: str) -> Line:
        """Return the line of a caller to a conversation, which begins if it is new.

        TransportError if there is no room for it, PeerLost if it is over.
        """
        with self._changed:
            if conversation not in self._threads:
                self._begin(conversation)
            begun = self._changed.wait_for(
                lambda: conversation in self._lines or conversation not in self._threads, _BEGINS
            )
            lines = self._lines.get(conversation)
            if not begun or lines is None or name not in lines:
                raise PeerLost(f"{self._me} has ended this conversation; begin another one")
            return lines[name]

    def enter(self, conversation: str, lines: Mapping[str, Line]) -> None:
        """Hand who calls about this conversation to its lines."""
        with self._changed:
            self._lines[conversation] = lines
            self._changed.notify_all()

    def leave(self, conversation: str) -> None:
        """Hand nobody to this conversation any more."""
        with self._changed:
            self._lines.pop(conversation, None)
            if conversation:
                self._over.append(conversation)
            self._changed.notify_all()

    def close(self) -> None:
        """Let no other conversation begin."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait until all conversations have ended, and say whether they have."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._threads, seconds)

    def _begin(self, conversation: str) -> None:
        """Begin a conversation once there is room; called with the lock."""
        if conversation in self._over:
            raise PeerLost(f"{self._me} has ended this conversation; begin another one")
        if len(self._threads) >= self._most and not self._closed:
            if self._waiting >= self._room:
                raise self._busy()
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: self._closed or len(self._threads) < self._most, _WAIT)
            finally:
                self._waiting -= 1
        if self._closed or (conversation not in self._threads and len(self._threads) >= self._most):
            raise self._busy()
        if conversation not in self._threads:
            thread = threading.Thread(target=self._held, args=(conversation,), name="conversation", daemon=True)
            self._threads[conversation] = thread
            thread.start()

    def _busy(self) -> TransportError:
        if self._closed:
            return TransportError(f"{self._me} is ending; come again once it is up")
        return TransportError(f"{self._me} is busy with {self._most} conversations; come again in {AGAIN} s")

    def _held(self, conversation: str) -> None:
        try:
            self._hold(conversation)
        finally:
            with self._changed:
                self._threads.pop(conversation, None)
                self._lines.pop(conversation, None)
                self._changed.notify_all()
