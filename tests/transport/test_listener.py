"""The listener in front of a server relays connections, and strangers cannot exhaust it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from securevfl.transport import listener as listening
from securevfl.transport.listener import Listener

HELLO = b"\x16hello"


class EchoServer:
    """A server on a Unix socket that answers every message with itself, and counts connections."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(path)
        self._socket.listen(512)
        self.accepted = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            self.accepted += 1
            threading.Thread(target=self._echo, args=(client,), daemon=True).start()

    def _echo(self, client: socket.socket) -> None:
        with client:
            while True:
                try:
                    data = client.recv(1 << 16)
                    if not data:
                        return
                    client.sendall(data)
                except OSError:
                    return

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def served(request: pytest.FixtureRequest) -> Iterator[tuple[Listener, EchoServer]]:
    """A listener, with the limits of an indirect parameter if there is one, and its server."""
    front = Listener([(socket.AF_INET, ("127.0.0.1", 0))], **getattr(request, "param", {}))
    server = EchoServer(str(front.server_path))
    front.start()
    yield front, server
    front.stop()
    server.close()


def connect(front: Listener) -> socket.socket:
    return socket.create_connection(("127.0.0.1", front.ports[0]), timeout=10)


def receive(client: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = client.recv(count - len(data))
        if not more:
            break
        data += more
    return data


def closed(client: socket.socket, within: float) -> bool:
    client.settimeout(within)
    try:
        return client.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_bytes_are_relayed_in_both_directions(served: tuple[Listener, EchoServer]) -> None:
    front, _ = served
    data = HELLO + bytes(range(256)) * 40_000  # ten MB, more than all buffers hold
    with connect(front) as client:
        sender = threading.Thread(target=client.sendall, args=(data,))
        sender.start()
        assert receive(client, len(data)) == data
        sender.join()


def test_a_client_that_stops_sending_still_reads_the_answer(served: tuple[Listener, EchoServer]) -> None:
    front, _ = served
    with connect(front) as client:
        client.sendall(HELLO)
        client.shutdown(socket.SHUT_WR)
        assert receive(client, len(HELLO)) == HELLO
        assert client.recv(1) == b""


def test_what_is_not_tls_is_closed_and_never_reaches_the_server(served: tuple[Listener, EchoServer]) -> None:
    front, server = served
    with connect(front) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert closed(client, 5)
    assert server.accepted == 0


def test_a_listener_without_tls_relays_http() -> None:
    front = Listener([(socket.AF_INET, ("127.0.0.1", 0))], tls=False)
    server = EchoServer(str(front.server_path))
    front.start()
    with connect(front) as client:
        client.sendall(b"GET /")
        assert receive(client, 5) == b"GET /"
    front.stop()
    server.close()


def test_the_time_of_a_request_begins_with_each_request_anew() -> None:
    """A connection that stays open for longer than one request may take."""
    front = Listener([(socket.AF_INET, ("127.0.0.1", 0))], tls=False, request_seconds=0.2)
    server = EchoServer(str(front.server_path))
    front.start()
    with connect(front) as client:
        for _ in range(3):
            client.sendall(b"GET /")
            assert receive(client, 5) == b"GET /"
            time.sleep(0.25)
    front.stop()
    server.close()


@pytest.mark.parametrize("served", [{"first_byte_seconds": 0.3}], indirect=True, ids=[""])
def test_silent_connections_end_after_the_first_byte_s_time(served: tuple[Listener, EchoServer]) -> None:
    front, server = served
    with connect(front) as client:
        assert closed(client, 5)
    assert server.accepted == 0


@pytest.mark.parametrize("served", [{"handshake_seconds": 0.3}], indirect=True, ids=[""])
def test_unanswered_handshakes_end_in_time(served: tuple[Listener, EchoServer]) -> None:
    front, _ = served
    with connect(front) as client, connect(front) as established:
        for connection in (client, established):
            connection.sendall(HELLO)
            assert receive(connection, len(HELLO)) == HELLO
        established.sendall(HELLO)
        assert receive(established, len(HELLO)) == HELLO
        assert closed(client, 5)
        established.sendall(HELLO)  # the client has answered, so the time limit of the handshake no longer applies
        assert receive(established, len(HELLO)) == HELLO


@pytest.mark.parametrize(
    "served",
    [{"first_byte_seconds": 60.0, "handshake_seconds": 60.0, "grace_seconds": 5.0}],
    indirect=True,
    ids=[""],
)
@pytest.mark.parametrize("first", [b"", HELLO], ids=["silent", "half open"])
def test_strangers_do_not_keep_a_client_out(served: tuple[Listener, EchoServer], first: bytes) -> None:
    """Of one address, 300 connections send nothing more; a client that continues does not wait until they end."""
    front, _ = served
    strangers = [connect(front) for _ in range(300)]
    for stranger in strangers:
        try:
            stranger.sendall(first)
        except OSError:
            continue  # closed already
    begun = time.monotonic()
    with connect(front) as client:
        client.sendall(HELLO)
        assert receive(client, len(HELLO)) == HELLO
        client.sendall(HELLO)
        assert receive(client, len(HELLO)) == HELLO
    assert time.monotonic() - begun < 30
    connections = front._connections
    assert len(connections) <= listening.CONNECTIONS_IN_ALL
    deadline = time.monotonic() + 50
    while len(connections) > listening.CONNECTIONS_PER_ADDRESS and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(connections) <= listening.CONNECTIONS_PER_ADDRESS
    for stranger in strangers:
        stranger.close()


@pytest.mark.parametrize(
    "served",
    [{"first_byte_seconds": 600.0, "handshake_seconds": 600.0, "grace_seconds": 600.0}],
    indirect=True,
    ids=[""],
)
def test_a_burst_of_clients_is_served(served: tuple[Listener, EchoServer]) -> None:
    """100 clients that connect before the first of them sends a byte, and are not idle for longer than the grace."""
    front, _ = served
    clients = [connect(front) for _ in range(100)]
    for client in clients:
        client.sendall(HELLO)
    assert all(receive(client, len(HELLO)) == HELLO for client in clients)
    for client in clients:
        client.close()


def test_established_connections_are_bounded_in_all() -> None:
    front = Listener([(socket.AF_INET, ("127.0.0.1", 0))], in_all=8)
    server = EchoServer(str(front.server_path))
    front.start()
    clients = []
    for _ in range(20):
        client = connect(front)
        for _ in range(2):
            client.sendall(HELLO)
            assert receive(client, len(HELLO)) == HELLO
        clients.append(client)
    assert len(front._connections) <= 8
    assert closed(clients[0], 2)
    clients[-1].sendall(HELLO)
    assert receive(clients[-1], len(HELLO)) == HELLO
    front.stop()
    server.close()


def test_a_stopped_listener_leaves_nothing(served: tuple[Listener, EchoServer]) -> None:
    front, _ = served
    client = connect(front)
    front.stop()
    front.stop()
    assert closed(client, 2)
    assert not front.server_path.parent.exists()
