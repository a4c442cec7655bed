"""A party's port: accepts connections and passes each stream to its session.

gRPC listens on a Unix socket behind a `Listener`, which limits the connections of strangers.

A stream is one gRPC call on which both sides send messages; a line (`securevfl.transport.line`) is the connection of
two parties, which may use several streams one after the other. A client names the session by 16 random bytes, in
hexadecimal, in the metadata of its gRPC call. It names no session if the party has only one. TLS alone identifies the
client, so a client that names another client's session joins it under its own name, not under the other's.
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
SESSION_ID_KEY = "securevfl-conversation"  # metadata key of the session id
GRPC_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_PIECE_BYTES + 4096),
    ("grpc.max_send_message_length", MAX_PIECE_BYTES + 4096),
    ("grpc.max_metadata_size", 8192),
    ("grpc.so_reuseport", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
]
REFUSAL_SECONDS = 1.0  # seconds to wait until the client has received a refusal
_SESSION_ID = re.compile("[0-9a-f]{32}")

LineOf = Callable[[str, str], Line]
"""A function from a session id (empty if the client sent none) and a client's name to the client's line."""


class Acceptor:
    """Server at a party's address that accepts a limited number of streams at a time.

    Args:
        credentials: key and certificate of this party.
        callers: names of the parties that may connect.
        address: host:port of this party in peers.toml.
        line_of: returns the client's line in its session, which it may start. It raises SecureVFLError to refuse the
            client.
        refused: called with the name of every refused client (empty if unknown) and the error.
        listen: host:port to bind instead of `address`.
        streams: maximum number of streams at a time.

    Raises:
        ConfigError: another program listens on the port, the address is not of this machine, or gRPC would accept
            TLS 1.2 on it.
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
        self._credentials, self._callers, self._line_of, self._refused = credentials, callers, line_of, refused
        host, port = split_address(self.me, listen or address)
        if listen is None and host != "localhost" and not host.startswith("127."):
            host = "::"
        self._listener = listen_on(self.me, host, port)
        self._server = grpc.server(
            ThreadPoolExecutor(streams, thread_name_prefix="stream"),
            handlers=[_Handler(self._serve_stream)],
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
        """Close all streams after `grace` seconds, or at once if None."""
        self._server.stop(grace).wait()
        self._listener.stop()

    def _serve_stream(self, requests: Any, context: Any) -> Iterator[bytes]:
        name = ""
        self.handshakes.succeed()
        try:
            name, certificate = identify_caller(context.auth_context(), self._callers)
            check_peer(certificate, self._credentials.ca, name)
            stream = self._line_of(_session_id(context), name).begin(calling=False)
        except SecureVFLError as error:
            self._refused(name, error)
            eventlog.warn(self.me, "refused", {"from": name or "a caller without a valid name", "reason": str(error)})
            yield encode_message(RefuseStream(str(error), True, isinstance(error, PeerLost)))
            return

        def read() -> None:
            with suppress(Exception):  # gRPC raises a bare Exception when the client disconnects
                stream.read(requests)
            end()

        def end() -> None:
            if stream.end("the stream was cut"):
                eventlog.warn(self.me, "connection interrupted", {"peer": name})

        stream.set_hang_up(context.cancel)
        context.add_callback(end)
        threading.Thread(target=read, name=f"read {name}", daemon=True).start()
        yield from stream.outgoing()


def _session_id(context: Any) -> str:
    """Return the session id of a call, or an empty string if it has none or an invalid one."""
    ids = [value for key, value in context.invocation_metadata() if key == SESSION_ID_KEY]
    return ids[0] if len(ids) == 1 and isinstance(ids[0], str) and _SESSION_ID.fullmatch(ids[0]) else ""


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, serve_stream: Callable[[Any, Any], Iterator[bytes]]) -> None:
        self._method = grpc.stream_stream_rpc_method_handler(serve_stream)

    def service(self, details: Any) -> Any:
        return self._method if details.method == STREAM_METHOD else None
