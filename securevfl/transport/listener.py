"""A listening socket in front of a server that prevents strangers from exhausting the server's file descriptors.

The server (gRPC or uvicorn) listens on a Unix socket in a private folder. The listener accepts TCP connections, waits
for the first byte, and then relays bytes in both directions. TLS ends in the server. A connection has three phases:
1. silent: nothing was received yet. It is closed after `FIRST_BYTE_SECONDS`, or if the first byte is not that of TLS.
2. handshake: the client has sent its first bytes and has not answered the server's first reply. It is closed after
   `HANDSHAKE_SECONDS`.
3. established: the client has answered. It ends when one of the two sides closes it.

If an address has more than `per_address` connections in phases 1 and 2, those idle for more than `grace_seconds` are
closed. With more than `in_all` connections, the one idle for the longest time is closed. If requests are limited, a
client that takes more than `request_seconds` to send one is closed, and so is one without a reply in `ANSWER_SECONDS`.
"""

from __future__ import annotations

import errno
import os
import selectors
import shutil
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from securevfl.errors import ConfigError

FIRST_BYTE_SECONDS = 5.0
HANDSHAKE_SECONDS = 10.0
GRACE_SECONDS = 1.0  # seconds for which a connection may be idle before it counts for the limit `per_address`
CONNECTIONS_PER_ADDRESS = 16
CONNECTIONS_IN_ALL = 256
ANSWER_SECONDS = 70.0  # seconds in which a request must be answered; the gateway answers within 60 s
_TLS_HANDSHAKE = 0x16  # the first byte of a TLS record that begins a handshake
_BUFFER_BYTES = 1 << 18
_BACKLOG = 512
_ACCEPTED_AT_ONCE = 64  # number of connections that are accepted in a row before other connections get their turn
_RELEASE_SECONDS = 2.0  # seconds until the kernel releases the port of a process that has just ended


@dataclass(eq=False)
class _Connection:
    """One client's connection, and the connection to the server once the client has sent a byte."""

    client: socket.socket
    address: str
    accepted: float
    upstream: socket.socket | None = None
    active: float = 0.0  # time at which bytes were last relayed
    replied: bool = False  # the server has sent bytes to the client
    answered: bool = False  # the client has sent bytes after the server's first reply
    requested: float | None = None  # time at which the client sent its first byte after the last reply
    to_server: bytearray = field(default_factory=bytearray)
    to_client: bytearray = field(default_factory=bytearray)
    client_done: bool = False  # the client has sent its last byte
    server_done: bool = False

    @property
    def phase(self) -> int:
        """The phase: 0 for silent, 1 for handshake, 2 for established."""
        return 0 if self.upstream is None else 1 if not self.answered else 2


class Listener:
    """Accepts connections on TCP addresses and relays them to a server on a Unix socket.

    Args:
        addresses: (family, address) of each socket to bind.
        tls: True if connections begin with a TLS handshake.
        per_address: maximum number of connections of one address that have not finished their handshake.
        in_all: maximum number of connections.
        request_seconds: seconds for a request to arrive completely; None does not limit it.
        first_byte_seconds: seconds for the first byte of a connection to arrive.
        handshake_seconds: seconds for a handshake to finish.
        grace_seconds: seconds for which a connection may be idle before it counts for the limit `per_address`.

    Raises:
        OSError: an address cannot be bound.
    """

    def __init__(
        self,
        addresses: Sequence[tuple[int, tuple[str, int]]],
        *,
        tls: bool = True,
        per_address: int = CONNECTIONS_PER_ADDRESS,
        in_all: int = CONNECTIONS_IN_ALL,
        request_seconds: float | None = None,
        first_byte_seconds: float = FIRST_BYTE_SECONDS,
        handshake_seconds: float = HANDSHAKE_SECONDS,
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        self._tls, self._per_address, self._in_all = tls, per_address, in_all
        self._request_seconds = request_seconds
        self._first_byte_seconds, self._handshake_seconds = first_byte_seconds, handshake_seconds
        self._grace_seconds = grace_seconds
        self._folder = Path(tempfile.mkdtemp(prefix="svfl-"))  # mode 0700
        self.server_path = self._folder / "server.sock"
        self._connections: set[_Connection] = set()
        self._handshakes: Counter[str] = Counter()
        self._selector = selectors.DefaultSelector()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._stopping = False
        self._sockets: list[socket.socket] = []
        try:
            for family, address in addresses:
                self._sockets.append(_listening(family, address))
        except OSError as cause:
            self._close_sockets()
            cause.filename = str(address[0])
            raise
        for listening in self._sockets:
            self._selector.register(listening, selectors.EVENT_READ, None)
        self._wake_receiver.setblocking(False)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)

    @property
    def ports(self) -> list[int]:
        """The bound ports, in the order of the addresses."""
        return [int(listening.getsockname()[1]) for listening in self._sockets]

    def start(self) -> None:
        """Accept connections from now on; the server must already listen on `server_path`."""
        self._thread.start()

    def stop(self) -> None:
        """Close all connections and sockets. May be called twice."""
        if self._stopping:
            return
        self._stopping = True
        with suppress(OSError):
            self._wake_sender.send(b"x")
        if self._thread.is_alive():
            self._thread.join()
        else:
            self._close_sockets()

    def _close_sockets(self) -> None:
        for used in (*self._sockets, self._wake_receiver, self._wake_sender):
            used.close()
        self._selector.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self) -> None:
        try:
            while not self._stopping:
                for key, events in self._selector.select(timeout=0.5 if self._connections else None):
                    if key.data is not None:
                        self._relay(key.data, key.fileobj, events)
                    elif key.fileobj is self._wake_receiver:
                        with suppress(OSError):
                            self._wake_receiver.recv(16)
                    else:
                        self._accept(key.fileobj)  # type: ignore[arg-type]
                self._close_overdue()
        finally:
            for connection in list(self._connections):
                self._close(connection)
            self._close_sockets()

    def _accept(self, listening: socket.socket) -> None:
        """Accept the waiting connections, and close one if there are then too many."""
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                client, address = listening.accept()
            except BlockingIOError:
                return
            except OSError:  # if no file descriptor is left, one connection is closed and the next event tries again
                self._evict(self._connections)
                return
            client.setblocking(False)
            with suppress(OSError):
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            now = time.monotonic()
            connection = _Connection(client, str(address[0]), now, active=now)
            self._connections.add(connection)
            self._handshakes[connection.address] += 1
            self._selector.register(client, selectors.EVENT_READ, connection)
            # a client that is not silent has often sent its first bytes already, so they are read at once
            self._relay(connection, client, selectors.EVENT_READ)
            if len(self._connections) > self._in_all:
                self._evict(other for other in self._connections if other is not connection)

    def _evict(self, candidates: Iterable[_Connection]) -> None:
        """Close the connection that has been idle for the longest time, silent ones first."""
        idle = min(candidates, key=lambda other: (other.phase, other.active), default=None)
        if idle is not None:
            self._close(idle)

    def _close_overdue(self) -> None:
        now = time.monotonic()
        for connection in list(self._connections):
            age = now - connection.accepted
            if (
                (connection.phase == 0 and age > self._first_byte_seconds)
                or (connection.phase == 1 and age > self._handshake_seconds)
                or (
                    self._request_seconds is not None
                    and connection.requested is not None
                    and now - connection.requested > self._request_seconds + ANSWER_SECONDS
                )
            ):
                self._close(connection)
        for address, count in list(self._handshakes.items()):
            if count > self._per_address:
                idle = [
                    connection
                    for connection in self._connections
                    if connection.address == address
                    and connection.phase < 2
                    and now - connection.active > self._grace_seconds
                ]
                idle.sort(key=lambda connection: (connection.phase, connection.active))
                for connection in idle[: count - self._per_address]:
                    self._close(connection)

    def _close(self, connection: _Connection) -> None:
        if connection not in self._connections:
            return
        if connection.phase < 2:
            self._forget_handshake(connection)
        self._connections.discard(connection)
        for side in (connection.client, connection.upstream):
            if side is not None:
                with suppress(KeyError, ValueError):
                    self._selector.unregister(side)
                side.close()

    def _forget_handshake(self, connection: _Connection) -> None:
        self._handshakes[connection.address] -= 1
        if self._handshakes[connection.address] <= 0:
            del self._handshakes[connection.address]

    def _relay(self, connection: _Connection, side: object, events: int) -> None:
        """Read from and write to one side of a connection."""
        if connection not in self._connections:
            return
        try:
            if side is connection.client:
                if events & selectors.EVENT_READ:
                    self._from_client(connection)
                if events & selectors.EVENT_WRITE:
                    _send(connection.client, connection.to_client)
            else:
                if events & selectors.EVENT_READ:
                    self._from_server(connection)
                if events & selectors.EVENT_WRITE:
                    _send(connection.upstream, connection.to_server)
            if connection in self._connections:
                self._update(connection)
        except BlockingIOError:  # nothing has arrived yet
            return
        except OSError:
            self._close(connection)

    def _from_client(self, connection: _Connection) -> None:
        data = connection.client.recv(_BUFFER_BYTES)
        connection.active = time.monotonic()
        if not data:
            connection.client_done = True
            if connection.upstream is None:
                self._close(connection)
            return
        if connection.upstream is None:
            if self._tls and data[0] != _TLS_HANDSHAKE:
                self._close(connection)
                return
            connection.upstream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.upstream.connect(os.fspath(self.server_path))
            connection.upstream.setblocking(False)
            self._selector.register(connection.upstream, selectors.EVENT_READ, connection)
            if not self._tls:
                connection.replied = True
        if connection.requested is None:
            connection.requested = connection.active
        elif self._request_seconds is not None and connection.active - connection.requested > self._request_seconds:
            self._close(connection)
            return
        if connection.replied and not connection.answered:
            connection.answered = True
            self._forget_handshake(connection)
        connection.to_server += data
        _send(connection.upstream, connection.to_server)

    def _from_server(self, connection: _Connection) -> None:
        assert connection.upstream is not None
        data = connection.upstream.recv(_BUFFER_BYTES)
        connection.active = time.monotonic()
        if not data:
            connection.server_done = True
            return
        connection.replied, connection.requested = True, None
        connection.to_client += data
        _send(connection.client, connection.to_client)

    def _update(self, connection: _Connection) -> None:
        """Register the events that either side waits for; close the connection when both have finished."""
        if connection.server_done and not connection.to_client:
            self._close(connection)
            return
        if connection.client_done and not connection.to_server and connection.upstream is not None:
            with suppress(OSError):
                connection.upstream.shutdown(socket.SHUT_WR)
        self._wait(
            connection,
            connection.client,
            reads=not connection.client_done and len(connection.to_server) < _BUFFER_BYTES,
            writes=bool(connection.to_client),
        )
        if connection.upstream is not None:
            self._wait(
                connection,
                connection.upstream,
                reads=not connection.server_done and len(connection.to_client) < _BUFFER_BYTES,
                writes=bool(connection.to_server),
            )

    def _wait(self, connection: _Connection, side: socket.socket, *, reads: bool, writes: bool) -> None:
        events = selectors.EVENT_READ * reads | selectors.EVENT_WRITE * writes
        registered = side.fileno() in self._selector.get_map()
        if not events:
            if registered:
                self._selector.unregister(side)
        elif not registered:
            self._selector.register(side, events, connection)
        elif self._selector.get_key(side).events != events:
            self._selector.modify(side, events, connection)


def listen_on(
    me: str,
    host: str,
    port: int,
    *,
    tls: bool = True,
    in_all: int = CONNECTIONS_IN_ALL,
    request_seconds: float | None = None,
) -> Listener:
    """Return a listener on this port of a host; "::" stands for all IPv4 and IPv6 addresses.

    Args:
        me: name of this party, which the error states.
        host: a host name or an address.
        port: the port.
        tls: True if connections use TLS.
        in_all: maximum number of connections.
        request_seconds: seconds for a request to arrive completely; None does not limit it.

    Returns:
        The listener.

    Raises:
        ConfigError: another program listens on one of the addresses, or none of them belongs to this machine.
    """
    deadline = time.monotonic() + _RELEASE_SECONDS
    while True:
        try:
            return Listener(_addresses(host, port), tls=tls, in_all=in_all, request_seconds=request_seconds)
        except OSError as cause:
            if cause.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                in_use = cause.errno == errno.EADDRINUSE
                raise ConfigError(
                    f"{me}: another program listens on port {port} of {cause.filename}"
                    if in_use
                    else f"{me}: cannot listen on {host}:{port} ({cause.strerror})",
                    "stop it, or change the address in the peers file at all parties",
                    code="SVFL-ADDRESS",
                    port=port,
                ) from None
        time.sleep(0.05)


def _addresses(host: str, port: int) -> list[tuple[int, tuple[str, int]]]:
    """Return every address of the host that this machine has, with its address family (IPv4 or IPv6).

    Args:
        host: a host name or an address.
        port: the port.

    Returns:
        Pairs of the address family and the address with its port.

    Raises:
        OSError: this machine has no address of the host.
    """
    hosts = ["0.0.0.0", "::"] if host == "::" else [host]  # noqa: S104  all addresses were asked for
    bindable: dict[tuple[int, tuple[Any, ...]], None] = {}
    for name in hosts:
        for family, _, _, _, address in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM):
            with suppress(OSError), closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
                probe.bind((address[0], 0))
                bindable[family, address] = None
    if not bindable:
        raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL), host)
    return [(family, (str(address[0]), port)) for family, address in bindable]


def _send(side: socket.socket | None, data: bytearray) -> None:
    """Send as many bytes as the socket accepts, and remove them from the buffer."""
    assert side is not None
    while data:
        try:
            sent = side.send(data)
        except BlockingIOError:
            return
        del data[:sent]


def _listening(family: int, address: tuple[str, int]) -> socket.socket:
    """Bind and listen on one address without blocking."""
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening
