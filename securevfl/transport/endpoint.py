"""Lines over gRPC: one service, one bidirectional stream of opaque messages between two neighbours, mutual TLS 1.3.

Of two neighbours one calls (`Peers.calls`) and calls again when the stream is cut; both send and receive on it. No code
is generated: messages are bytes to gRPC and structs of `transport.line` to us.
"""

from __future__ import annotations

import errno
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any

from securevfl.errors import ConfigError, PeerLost, SecureVFLError
from securevfl.runtime import eventlog
from securevfl.runtime.codec import encode_message
from securevfl.transport.certs import check_peer, server_name
from securevfl.transport.line import PIECE, Line, Refusal
from securevfl.transport.peers import Peers, split_address
from securevfl.transport.tls import Credentials, caller, diagnose, grpc, require_tls13

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
    while (taken := _taken(host, port)) is not None:
        if time.monotonic() > deadline:
            raise ConfigError(
                f"{me}: port {port} was expected to be free, another program listens on {taken}; end it, or take "
                "another port in the address of peers.toml, at all parties"
            )
        time.sleep(0.05)


def _taken(host: str, port: int) -> str | None:
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


METHOD = "/securevfl.Line/Stream"
_OPTIONS = [
    ("grpc.max_receive_message_length", PIECE + 4096),
    ("grpc.max_send_message_length", PIECE + 4096),
    ("grpc.max_metadata_size", 8192),
    ("grpc.so_reuseport", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
]
_TICK = 0.2  # seconds between looks at the lines
_LAST_WORD = 1.0  # seconds for a refusal to reach the other end


class Endpoint:
    """One party's or relay's lines to its neighbours.

    deliver(neighbour, packet) is called for every packet, from one thread a neighbour; a SecureVFLError it raises
    refuses the packet. failed(neighbour, error) is called when a line is lost. listen: host:port to bind instead of
    the port of the party's own address. patience: seconds without a connection after which a neighbour is lost.
    """

    def __init__(
        self,
        credentials: Credentials,
        peers: Peers,
        deliver: Callable[[str, bytes], None],
        failed: Callable[[str, SecureVFLError], None],
        *,
        listen: str | None = None,
        patience: float = 60.0,
    ) -> None:
        self.me = credentials.party
        self._credentials = credentials
        self._peers = peers
        self._listen = listen
        self._stopped = threading.Event()
        self._callers = Callers()
        self._server: Any = None
        start = secrets.token_bytes(16)
        self.lines = {
            name: Line(
                self.me,
                name,
                lambda packet, name=name: deliver(name, packet),  # type: ignore[misc]
                lambda error, name=name: failed(name, error),  # type: ignore[misc]
                start=start,
                patience=patience,
            )
            for name in peers.neighbours(self.me)
        }
        for name, line in self.lines.items():
            if peers.calls(self.me, name):
                line.cause = f"nobody has answered at {peers.address[name]}"

    def start(self) -> None:
        """Start to listen for neighbours and to call them. Raises ConfigError if the port cannot be had or would take
        TLS 1.2."""
        if self._peers.listens(self.me):
            self._serve()
        for name, line in self.lines.items():
            if self._peers.calls(self.me, name):
                threading.Thread(target=self._call, args=(line,), name=f"call {name}", daemon=True).start()
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def close(self, timeout: float) -> None:
        """Send what is left, wait up to `timeout` seconds for every neighbour's goodbye, and stop.

        A hub says its own goodbye last, as it passes on what the others still have to say.
        """
        deadline = time.monotonic() + timeout
        while self.me == self._peers.hub and not self._quiet() and time.monotonic() < deadline:
            time.sleep(_TICK / 4)
        timeout = max(_LAST_WORD, deadline - time.monotonic())
        closers = [threading.Thread(target=line.close, args=(timeout,), daemon=True) for line in self.lines.values()]
        for each in closers:
            each.start()
        for each in closers:
            each.join()
        self._stopped.set()
        if self._server is not None:
            self._server.stop(_LAST_WORD).wait()

    def abandon(self) -> None:
        """Stop at once, without a goodbye."""
        self._stopped.set()
        for line in self.lines.values():
            line.abandon(PeerLost(f"{self.me} has hung up"))
        if self._server is not None:
            self._server.stop(None).wait()

    def _quiet(self) -> bool:
        return all(line.finished for line in self.lines.values())

    def _serve(self) -> None:
        host, port = split_address(self.me, self._listen or self._peers.address[self.me])
        if self._listen is None and host != "localhost" and not host.startswith("127."):
            host = "::"
        bind = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        room = 2 * len(self.lines) + 2
        self._server = grpc.server(
            ThreadPoolExecutor(room, thread_name_prefix="stream"),
            handlers=[_Handler(self._answer)],
            options=_OPTIONS,
            maximum_concurrent_rpcs=room,
        )
        require_free(self.me, host, port)
        try:
            self._server.add_secure_port(bind, self._credentials.identity.server_credentials(self._callers.called))
        except RuntimeError:
            raise ConfigError(f"{self.me}: {bind} cannot be listened on; is another process there?") from None
        self._server.start()
        require_tls13(port, self._credentials, "localhost" if host == "::" else host)
        self._callers.forget()
        eventlog.emit(self.me, "listening", {"at": bind})

    def _answer(self, requests: Any, context: Any) -> Iterator[bytes]:
        line: Line | None = None
        self._callers.came_in()
        try:
            name, certificate = caller(context.auth_context(), self.lines)
            line = self.lines[name]
            check_peer(certificate, self._credentials.ca, name)
            stream = line.begin(calling=False)
        except SecureVFLError as error:
            if line is not None and not line.opened:
                line.cause = f"it was refused: {error}"
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

    def _call(self, line: Line) -> None:
        """Keep a stream open to a neighbour that waits to be called."""
        host, port = split_address(line.peer, self._peers.address[line.peer])
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        pause, before = 0.05, ""
        while not self._stopped.is_set() and not line.over:
            try:
                stream = line.begin(calling=True)
            except SecureVFLError:
                return
            options = [*_OPTIONS, ("grpc.ssl_target_name_override", server_name(line.peer))]
            cause = "the stream was cut"
            with grpc.secure_channel(target, self._credentials.identity.channel_credentials(), options) as channel:
                call = channel.stream_stream(METHOD)(stream.outgoing())
                stream.hang_up = call.cancel
                try:
                    stream.read(call)
                    last_word = threading.Timer(_LAST_WORD, call.cancel)
                    last_word.start()
                    for _ in call:
                        pass
                    last_word.cancel()
                except grpc.RpcError as error:
                    cause = f"{error.code().name.lower().replace('_', ' ')}: {error.details()}"
            if stream.end(cause):
                eventlog.warn(self.me, "cut", {"peer": line.peer, "cause": cause})
                pause = 0.05
            elif not line.over and not self._stopped.is_set():
                found = diagnose(host, port, line.peer, self._credentials)
                line.cause = str(found) if found is not None else stream.cause
                if found is not None and not line.opened and str(found) == before:
                    line.fail(found)  # seen twice, so it was not a server on its way down
                before = line.cause
            self._stopped.wait(pause)
            pause = min(2 * pause, 1.0)

    def _watch(self) -> None:
        said = False
        while not self._stopped.wait(_TICK):
            for line in self.lines.values():
                line.watch()
            if not said and (failed := self._callers.turned_away()):
                said = self._say_turned_away(failed)

    def _say_turned_away(self, failed: int) -> bool:
        """Tell the people at this party why nobody comes in, where somebody is waited for; whether there was one."""
        missing = [
            line for line in self.lines.values() if not line.opened and not self._peers.calls(self.me, line.peer)
        ]
        for line in missing:
            line.cause = (
                f"{failed} calls came and none got through TLS: one side refused the other's certificate, and "
                f"{line.peer}'s screen says why, or it was another program; compare what `securevfl certs show ca.pem` "
                "prints at both"
            )
            eventlog.emit(self.me, "no call gets through", {"peer": line.peer, "reason": line.cause}, logging.ERROR)
        return bool(missing)


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, answer: Callable[[Any, Any], Iterator[bytes]]) -> None:
        self._method = grpc.stream_stream_rpc_method_handler(answer)

    def service(self, details: Any) -> Any:
        return self._method if details.method == METHOD else None
