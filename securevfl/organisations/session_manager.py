"""The sessions of a party that stays up: several at a time on one port, each in its own thread.

The client chooses the session id. A session starts with the first connection and ends, with all its threads, when the
parties finish or one disconnects; a stalled client does not block other sessions. At most `max_sessions` run at a time,
at most `max_waiting` clients wait for a free slot, and all others receive an error that asks them to retry.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from securevfl.errors import (
    ConfigError,
    PeerLost,
    TransportError,
)
from securevfl.transport.line import Line

RETRY_SECONDS = 5  # seconds after which one that was turned away may come again

_WAIT = 10.0  # seconds that a caller waits for room

_BEGINS = 10.0  # seconds for a conversation to take its callers

_OVER = 1024  # names of the last conversations


@dataclass(frozen=True)
class SessionLimits:
    """How many conversations go on at a time, and how many callers more wait for one to end; ConfigError unless one may
    go on."""

    max_sessions: int = 16
    max_waiting: int = 64

    def __post_init__(self) -> None:
        if self.max_sessions < 1 or self.max_waiting < 0:
            raise ConfigError(
                f"one conversation at a time or more was expected, {self.max_sessions} came; correct max_sessions"
            )


class SessionManager:
    """The conversations that go on at a party (a `transport.endpoint.SessionRouter`).

    hold: holds the conversation of a name, in the calling thread, until it ends.
    """

    def __init__(self, me: str, hold: Callable[[str], None], limits: SessionLimits) -> None:
        self._me, self._hold, self._most, self._room = me, hold, limits.max_sessions, limits.max_waiting
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

    def add_session(self, conversation: str, lines: Mapping[str, Line]) -> None:
        """Hand who calls about this conversation to its lines."""
        with self._changed:
            self._lines[conversation] = lines
            self._changed.notify_all()

    def remove_session(self, conversation: str) -> None:
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
        return TransportError(f"{self._me} is busy with {self._most} conversations; come again in {RETRY_SECONDS} s")

    def _held(self, conversation: str) -> None:
        try:
            self._hold(conversation)
        finally:
            with self._changed:
                self._threads.pop(conversation, None)
                self._lines.pop(conversation, None)
                self._changed.notify_all()
