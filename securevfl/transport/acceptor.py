"""A party's port: takes in who calls, and hands each stream to the conversation that it is for.

A caller names the conversation by 16 random bytes in the metadata of its call, in hex; it names none where there is one
conversation alone. Which of the parties calls is known by TLS and by nothing that it says, so whoever names another's
conversation comes into it as who it is.
"""

from __future__ import annotations

import errno
import re
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any

from securevfl.errors import ConfigError, PeerLost, SecureVFLError
from securevfl.runtime import eventlog
from securevfl.runtime.codec import encode_message
from securevfl.transport.certs import check_peer
from securevfl.transport.grpc_tls13 import grpc
from securevfl.transport.line import PIECE, Line, Refusal
from securevfl.transport.peers import split_address
from securevfl.transport.tls import Credentials, caller, require_tls13

METHOD = "/securevfl.Line/Stream"
NAMED_BY = "securevfl-conversation"  # the key of its name in the metadata of a call
OPTIONS = [
    ("grpc.max_receive_message_length", PIECE + 4096),
    ("grpc.max_send_message_length", PIECE + 4096),
    ("grpc.max_metadata_size", 8192),
    ("grpc.so_reuseport", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
]
LAST_WORD = 1.0  # seconds for a refusal to reach the other end
_NAME = re.compile("[0-9a-f]{32}")

LineOf = Callable[[str, str], Line]  # by the name of a conversation, empty where none came, and that of the caller


# Calls that do not get in: gRPC says that a handshake begins, not that it failed or why, so failures are counted.


SEVERAL = 3  # handshakes that failed; whoever calls with another certificate has made as many within a second
SETTLED = 1.0  # seconds after which a handshake that led to nothing has failed


class Callers:
    """Handshakes at a party's port, from the threads of gRPC."""

    def __init__(self) -> None:
        self._begun: list[float] = []
        self._lock = threading.Lock()

    def called(self) -> None:
        """Note that a handshake begins."""
        with self._lock:
            self._begun.append(time.monotonic())

    def came_in(self) -> None:
        """Note that one of the handshakes that began has led to a stream."""
        with self._lock:
            self._begun = self._begun[1:]

    def forget(self) -> None:
        """Forget all handshakes: they were our own."""
        with self._lock:
            self._begun = []

    def turned_away(self) -> int:
        """Count the handshakes that failed, if they are several; 0 while there may be another cause."""
        with self._lock:
            failed = sum(time.monotonic() - each > SETTLED for each in self._begun)
        return failed if failed >= SEVERAL else 0


# Whether a port is free: gRPC listens on the addresses of a host that it can get, and says nothing of the others.


_WAIT = 2.0  # seconds for a listener of this process, or of one that was killed, to be gone


def require_free(me: str, host: str, port: int) -> None:
    """ConfigError if another program listens on this port of the host, "::" being all addresses, in any family."""
    deadline = time.monotonic() + _WAIT
    while (taken := _address_in_use(host, port)) is not None:
        if time.monotonic() > deadline:
            raise ConfigError(
                f"{me}: port {port} was expected to be free, another program listens on {taken}; end it, or take "
                "another port in the address of peers.toml, at all parties"
            )
        time.sleep(0.05)


def _address_in_use(host: str, port: int) -> str | None:
    """Find the first address at which somebody else listens; None if there is none."""
    with suppress(OSError):
        hosts = ["0.0.0.0", "::"] if host == "::" else [host]  # noqa: S104  it is what the party asked for
        found = [each for name in hosts for each in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)]
        for family, kind, protocol, _, address in dict.fromkeys(found):
            with closing(socket.socket(family, kind, protocol)) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                try:
                    probe.bind(address)
                    probe.listen(1)
                except OSError as cause:
                    if cause.errno == errno.EADDRINUSE:
                        return str(address[0])
    return None


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
        self.callers = Callers()
        self._credentials, self._known, self._line_of, self._refused = credentials, callers, line_of, refused
        host, port = split_address(self.me, listen or address)
        if listen is None and host != "localhost" and not host.startswith("127."):
            host = "::"
        bind = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._server = grpc.server(
            ThreadPoolExecutor(streams, thread_name_prefix="stream"),
            handlers=[_Handler(self._answer)],
            options=OPTIONS,
            maximum_concurrent_rpcs=streams,
        )
        require_free(self.me, host, port)
        try:
            self._server.add_secure_port(bind, credentials.identity.server_credentials(self.callers.called))
        except RuntimeError:
            raise ConfigError(f"{self.me}: {bind} cannot be listened on; is another process there?") from None
        self._server.start()
        require_tls13(port, credentials, "localhost" if host == "::" else host)
        self.callers.forget()
        eventlog.emit(self.me, "listening", {"at": bind})

    def stop(self, grace: float | None = LAST_WORD) -> None:
        """Hang up on whoever is left, after so many seconds; at once if None."""
        self._server.stop(grace).wait()

    def _answer(self, requests: Any, context: Any) -> Iterator[bytes]:
        name = ""
        self.callers.came_in()
        try:
            name, certificate = caller(context.auth_context(), self._known)
            check_peer(certificate, self._credentials.ca, name)
            stream = self._line_of(_named(context), name).begin(calling=False)
        except SecureVFLError as error:
            self._refused(name, error)
            eventlog.warn(self.me, "refused", {"from": str(context.peer()), "reason": str(error)})
            yield encode_message(Refusal(str(error), True, isinstance(error, PeerLost)))
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
    found = [value for key, value in context.invocation_metadata() if key == NAMED_BY]
    return found[0] if len(found) == 1 and isinstance(found[0], str) and _NAME.fullmatch(found[0]) else ""


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, answer: Callable[[Any, Any], Iterator[bytes]]) -> None:
        self._method = grpc.stream_stream_rpc_method_handler(answer)

    def service(self, details: Any) -> Any:
        return self._method if details.method == METHOD else None
