"""A party's port: takes in who calls, and hands each stream to the conversation that it is for.

A caller names the conversation by 16 random bytes in the metadata of its call, in hex; it names none where there is one
conversation alone. Which of the parties calls is known by TLS and by nothing that it says, so whoever names another's
conversation comes into it as who it is.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from securevfl.errors import PeerLost, SecureVFLError
from securevfl.runtime import eventlog
from securevfl.runtime.codec import encode_message
from securevfl.transport.certificate_checks import check_peer
from securevfl.transport.grpc_tls13 import grpc
from securevfl.transport.handshakes import HandshakeCounter
from securevfl.transport.line import Line
from securevfl.transport.line_messages import MAX_PIECE_BYTES, RefuseStream
from securevfl.transport.listener import listen_on
from securevfl.transport.peers import split_address
from securevfl.transport.tls import Credentials, identify_caller, require_tls13

STREAM_METHOD = "/securevfl.Line/Stream"
SESSION_ID_KEY = "securevfl-conversation"  # the key of its name in the metadata of a call
GRPC_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_PIECE_BYTES + 4096),
    ("grpc.max_send_message_length", MAX_PIECE_BYTES + 4096),
    ("grpc.max_metadata_size", 8192),
    ("grpc.so_reuseport", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
]
REFUSAL_SECONDS = 1.0  # seconds for a refusal to reach the other end
_NAME = re.compile("[0-9a-f]{32}")

LineOf = Callable[[str, str], Line]  # by the name of a conversation, empty where none came, and that of the caller


class Acceptor:
    """Listens at a party's address for so many streams at a time; ConfigError if the port cannot be had, or would take
    TLS 1.2.

    listen: host:port to bind instead of `address`. line_of: finds or begins a conversation, and returns its line; a
    SecureVFLError that it raises refuses the caller. refused: is told of callers that were refused, by their names as
    far as these are known.
    """

    def __init__(
        self,
        credentials: Credentials,
        callers: Collection[str],
        address: str,
        line_of: LineOf,
        *,
        refused: Callable[[str, SecureVFLError], None] = lambda name, error: None,
        listen: str | None = None,
        streams: int,
    ) -> None:
        self.me = credentials.party
        self.handshakes = HandshakeCounter()
        self._credentials, self._known, self._line_of, self._refused = credentials, callers, line_of, refused
        host, port = split_address(self.me, listen or address)
        if listen is None and host != "localhost" and not host.startswith("127."):
            host = "::"
        self._listener = listen_on(self.me, host, port)
        self._server = grpc.server(
            ThreadPoolExecutor(streams, thread_name_prefix="stream"),
            handlers=[_Handler(self._answer)],
            options=GRPC_OPTIONS,
            maximum_concurrent_rpcs=streams,
        )
        try:
            server_credentials = credentials.identity.server_credentials(self.handshakes.begin)
            self._server.add_secure_port(f"unix:{self._listener.server_path}", server_credentials)
            self._server.start()
            self._listener.start()
            require_tls13(port, credentials, "localhost" if host == "::" else host)
        except BaseException:
            self._listener.stop()
            raise
        self.handshakes.forget()
        bind = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        eventlog.emit(self.me, "listening", {"at": bind})

    def stop(self, grace: float | None = REFUSAL_SECONDS) -> None:
        """Hang up on whoever is left, after so many seconds; at once if None."""
        self._server.stop(grace).wait()
        self._listener.stop()

    def _answer(self, requests: Any, context: Any) -> Iterator[bytes]:
        name = ""
        self.handshakes.succeed()
        try:
            name, certificate = identify_caller(context.auth_context(), self._known)
            check_peer(certificate, self._credentials.ca, name)
            stream = self._line_of(_named(context), name).begin(calling=False)
        except SecureVFLError as error:
            self._refused(name, error)
            eventlog.warn(self.me, "refused", {"from": name or "a caller without a valid name", "reason": str(error)})
            yield encode_message(RefuseStream(str(error), True, isinstance(error, PeerLost)))
            return

        def read() -> None:
            with suppress(Exception):  # gRPC raises a bare one when the caller is gone
                stream.read(requests)
            ended()

        def ended() -> None:
            if stream.end("the stream was cut"):
                eventlog.warn(self.me, "cut", {"peer": name})

        stream.hang_up = context.cancel
        context.add_callback(ended)
        threading.Thread(target=read, name=f"read {name}", daemon=True).start()
        yield from stream.outgoing()


def _named(context: Any) -> str:
    """Return the name of the conversation that a call is for; empty if it names none, or nothing that is a name."""
    found = [value for key, value in context.invocation_metadata() if key == SESSION_ID_KEY]
    return found[0] if len(found) == 1 and isinstance(found[0], str) and _NAME.fullmatch(found[0]) else ""


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, answer: Callable[[Any, Any], Iterator[bytes]]) -> None:
        self._method = grpc.stream_stream_rpc_method_handler(answer)

    def service(self, details: Any) -> Any:
        return self._method if details.method == STREAM_METHOD else None
