"""The sessions of a server: several at a time on one port, each in its own thread.

The client chooses the session id. A session starts with the client's first connection and ends, with all its threads,
when the parties finish or one disconnects. At most `max_sessions` sessions have a *slot* and run at a time. At most
`max_waiting` clients wait for a free slot; all others receive an error that asks them to retry. A *line* is the
connection of one client in one session.
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

RETRY_SECONDS = 5  # seconds after which a refused client is asked to retry
_START_SECONDS = 10.0  # seconds in which a new session must be ready for connections
# number of ended sessions whose ids are stored, so that a late connection does not start such a session again
_REMEMBERED_SESSIONS = 1024


@dataclass(frozen=True)
class SessionLimits:
    """Limits on concurrent sessions.

    Attributes:
        max_sessions: maximum number of sessions at a time.
        max_waiting: maximum number of clients that wait for a free slot.
        max_seconds: maximum number of seconds that a client waits for a free slot.

    Raises:
        ConfigError: no session would be allowed.
    """

    max_sessions: int = 16
    max_waiting: int = 64
    max_seconds: float = 10.0

    def __post_init__(self) -> None:
        if self.max_sessions < 1 or self.max_waiting < 0:
            raise ConfigError(
                f"max_sessions = {self.max_sessions} and max_waiting = {self.max_waiting} are not allowed",
                "allow at least one session and no fewer than zero waiting clients",
                code="SVFL-JOB-OPTION",
            )


class SessionManager:
    """The running sessions of a party (a `transport.endpoint.SessionRouter`).

    Args:
        me: name of this party.
        run: receives a session id and runs that session until it ends, in the thread of the caller.
        limits: limits on concurrent sessions.
    """

    def __init__(self, me: str, run: Callable[[str], None], limits: SessionLimits) -> None:
        self._me, self._run, self._limits = me, run, limits
        self._threads: dict[str, threading.Thread] = {}
        self._lines: dict[str, Mapping[str, Line]] = {}
        self._finished: deque[str] = deque(maxlen=_REMEMBERED_SESSIONS)
        self._waiting, self._closed = 0, False
        self._changed = threading.Condition()

    @property
    def max_sessions(self) -> int:
        """Maximum number of sessions at a time."""
        return self._limits.max_sessions

    @property
    def streams(self) -> int:
        """Maximum number of connections, running or waiting, that one other party may have at a time."""
        return self._limits.max_sessions + self._limits.max_waiting

    def line_of(self, session_id: str, name: str) -> Line:
        """Return the line (connection) of a client in a session, and start the session if it is new.

        Args:
            session_id: id of the session.
            name: name of the client.

        Returns:
            The client's line (connection) in this session.

        Raises:
            TransportError: there is no free slot.
            PeerLost: the session has ended.
        """
        with self._changed:
            if session_id not in self._threads:
                self._start(session_id)
            accepts = self._changed.wait_for(
                lambda: session_id in self._lines or session_id not in self._threads, _START_SECONDS
            )
            lines = self._lines.get(session_id)
            if not accepts or lines is None or name not in lines:
                raise self._ended()
            return lines[name]

    def add_session(self, session_id: str, lines: Mapping[str, Line]) -> None:
        """From now on, connect clients that name this session to the given lines."""
        with self._changed:
            self._lines[session_id] = lines
            self._changed.notify_all()

    def remove_session(self, session_id: str) -> None:
        """Refuse clients that name this session from now on."""
        with self._changed:
            self._lines.pop(session_id, None)
            if session_id:
                self._finished.append(session_id)
            self._changed.notify_all()

    def close(self) -> None:
        """Refuse new sessions from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` until all sessions have ended; return whether they have."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._threads, seconds)

    def _start(self, session_id: str) -> None:
        """Wait for a free slot and start the thread of a session. The caller holds the lock."""
        max_sessions = self._limits.max_sessions
        if session_id in self._finished:
            raise self._ended()
        if len(self._threads) >= max_sessions and not self._closed:
            if self._waiting >= self._limits.max_waiting:
                raise self._busy()
            self._waiting += 1
            try:
                self._changed.wait_for(
                    lambda: self._closed or len(self._threads) < max_sessions, self._limits.max_seconds
                )
            finally:
                self._waiting -= 1
        if self._closed or (session_id not in self._threads and len(self._threads) >= max_sessions):
            raise self._busy()
        if session_id not in self._threads:
            thread = threading.Thread(target=self._run_to_end, args=(session_id,), name="session", daemon=True)
            self._threads[session_id] = thread
            thread.start()

    def _ended(self) -> PeerLost:
        return PeerLost(f"{self._me} has ended this session", "start a new one", code="SVFL-PEER-LOST", party=self._me)

    def _busy(self) -> TransportError:
        if self._closed:
            problem, remedy = f"{self._me} is shutting down", "retry once it is up again"
        else:
            problem = f"{self._me} serves the maximum of {self._limits.max_sessions} sessions"
            remedy = f"retry in {RETRY_SECONDS} s"
        return TransportError(problem, remedy, code="SVFL-PEER-BUSY", party=self._me)

    def _run_to_end(self, session_id: str) -> None:
        try:
            self._run(session_id)
        finally:
            with self._changed:
                self._threads.pop(session_id, None)
                self._lines.pop(session_id, None)
                self._changed.notify_all()
