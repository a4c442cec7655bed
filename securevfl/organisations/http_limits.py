"""HTTP server limits: request timeout and maximum number of connections.

uvicorn limits neither. Without limits, a client with or without a token could hold each connection open with a byte now
and then until the process has no file descriptors left. A connection is closed when a request, including its body, has
not arrived completely between one and two timeouts after the previous one. When too many connections are open, those
that have waited longest for a request are closed.
"""

from __future__ import annotations

from typing import Any


def limit_http_connections(protocol: type[Any], *, seconds: float, connections: int) -> type[Any]:
    """Return uvicorn's HTTP protocol of h11 with these bounds."""
    import h11

    class LimitedProtocol(protocol):  # type: ignore[misc]
        _requests = 0

        @property
        def _waits(self) -> bool:
            """Whether a request is to come, or has not come whole."""
            return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._since = self.loop.time()
            self._check = self.loop.call_later(seconds, self._hurry, 0)
            waiting = sorted(
                (connection for connection in self.connections if connection._waits), key=lambda each: each._since
            )
            for each in waiting[: max(0, len(self.connections) - connections)]:
                each.transport.abort()

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

        def _hurry(self, requests: int) -> None:
            """Hang up if no request has come whole since the last look, at which there were so many."""
            if self._waits and self._requests == requests:
                self.transport.abort()
            else:
                self._check = self.loop.call_later(seconds, self._hurry, self._requests)

    return LimitedProtocol
