"""HTTP server limits: request timeout and maximum number of connections.

uvicorn limits neither. Without limits, a client with or without a token could hold each connection open with a byte now
and then until the process has no file descriptors left. A connection is closed when a request, including its body, has
not arrived completely between one and two timeouts after the previous one. When too many connections are open, those
that have waited longest for a request are closed.
"""

from __future__ import annotations

from typing import Any


def limit_http_connections(protocol: type[Any], *, seconds: float, connections: int) -> type[Any]:
    """Return a subclass of uvicorn's h11 protocol with limits.

    Args:
        protocol: uvicorn's HTTP protocol class.
        seconds: timeout of a request.
        connections: maximum number of connections.

    Returns:
        The subclass.
    """
    import h11

    class LimitedProtocol(protocol):  # type: ignore[misc]
        _requests = 0

        @property
        def _waits(self) -> bool:
            """Whether the connection waits for a request, or for the rest of one."""
            return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._since = self.loop.time()
            self._check = self.loop.call_later(seconds, self._close_if_late, 0)
            waiting = sorted(
                (connection for connection in self.connections if connection._waits),
                key=lambda connection: connection._since,
            )
            for connection in waiting[: max(0, len(self.connections) - connections)]:
                connection.transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            self._check.cancel()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            waited = self._waits
            super().data_received(data)
            if waited and not self._waits:
                self._requests += 1

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._since = self.loop.time()
            self._requests += 1

        def _close_if_late(self, requests: int) -> None:
            """Close the connection if no request has arrived completely since the check that counted `requests`."""
            if self._waits and self._requests == requests:
                self.transport.abort()
            else:
                self._check = self.loop.call_later(seconds, self._close_if_late, self._requests)

    return LimitedProtocol
