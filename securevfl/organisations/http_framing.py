"""Refusal of HTTP requests whose end is ambiguous, which could smuggle a second request past a proxy.

A request with both Content-Length and Transfer-Encoding, or with several of either, may end at one place for a proxy
and at another for this server. The bytes between the two places would then be a second request that the proxy has not
checked (RFC 9112, section 6.1). Such a request is answered with 400, and its connection is closed.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

_FRAMING = (b"content-length", b"transfer-encoding")
_ANSWER = json.dumps(
    {"error": "Send either Content-Length or Transfer-Encoding: chunked, once.", "code": "SVFL-HTTP-REQUEST"}
).encode()


def refuse_ambiguous_framing(app: Any) -> Any:
    """Return an ASGI application that refuses requests with ambiguous framing and passes on all others.

    Args:
        app: the ASGI application.

    Returns:
        The application with the check.
    """

    async def checked(scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        if scope["type"] == "http" and sum(name.lower() in _FRAMING for name, _ in scope["headers"]) > 1:
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(_ANSWER)).encode()),
                (b"connection", b"close"),
            ]
            await send({"type": "http.response.start", "status": 400, "headers": headers})
            await send({"type": "http.response.body", "body": _ANSWER})
            return
        await app(scope, receive, send)

    return checked
