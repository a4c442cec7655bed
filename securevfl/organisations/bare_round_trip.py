"""The bare round trip to another party: the time that the network alone needs for a message and its answer.

HTTP/2 requires that every SETTINGS frame is acknowledged at once (RFC 9113, section 6.5.3), and gRPC does so in its
core. The frame and its acknowledgement pass everything between the two parties, including proxies and TLS, but no
Python code of the other party. So they take as long as a ping over the connection that a training uses, with the same
certificates.
"""

from __future__ import annotations

import socket
import ssl
import time

from securevfl.errors import TransportError
from securevfl.transport.certificate_checks import check_peer
from securevfl.transport.certificate_names import server_name
from securevfl.transport.tls import Credentials

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADER_BYTES = 9  # an HTTP/2 frame begins with a header of this many bytes
_SETTINGS, _PING, _GOAWAY = 4, 6, 7
_ACK = 1
_MAX_PAYLOAD_BYTES = 1 << 14  # maximum payload of a frame in bytes, unless both sides agree on more


def round_trips(
    credentials: Credentials, peer: str, address: tuple[str, int], count: int, timeout: float
) -> list[float]:
    """Measure round trips to a party's port.

    Args:
        credentials: key and certificate of this party.
        peer: name of the party.
        address: host and port.
        count: number of round trips, one after the other.
        timeout: seconds for the connection and for each acknowledgement.

    Returns:
        The seconds of each round trip.

    Raises:
        TransportError: the port does not belong to that party, or does not answer.
    """
    host, port = address
    context = credentials.context()
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        with (
            socket.create_connection(address, timeout) as connection,
            context.wrap_socket(connection, server_hostname=server_name(peer)) as secured,
        ):
            check_peer(secured.getpeercert(binary_form=True) or b"", credentials.ca, peer)
            secured.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client = _Http2Client(secured, timeout)
            secured.sendall(_PREFACE)
            client.round_trip()
            return [client.round_trip() for _ in range(count)]
    except OSError as error:
        reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror or error
        raise TransportError(
            f"{peer} at {host}:{port} did not acknowledge a packet of {credentials.party} ({reason})",
            "check that a party with this version of securevfl listens there",
            code="SVFL-PEER-AWAY",
            peer=peer,
        ) from None


class _Http2Client:
    """An HTTP/2 client that sends SETTINGS frames and waits for their acknowledgement."""

    def __init__(self, secured: ssl.SSLSocket, timeout: float) -> None:
        self._socket = secured
        self._timeout = timeout
        self._unread = b""

    def round_trip(self) -> float:
        """Send an empty SETTINGS frame, and return the seconds until its acknowledgement. Raise OSError without one."""
        start = time.perf_counter()
        self._socket.sendall(_frame(_SETTINGS, 0, b""))
        while (elapsed := time.perf_counter() - start) < self._timeout:
            kind, flags, payload = self._next()
            if kind == _SETTINGS and flags & _ACK:
                return time.perf_counter() - start
            if kind == _GOAWAY:
                raise ConnectionError("it closed the connection")
            if kind in (_SETTINGS, _PING) and not flags & _ACK:
                self._socket.sendall(_frame(kind, _ACK, payload if kind == _PING else b""))
        raise TimeoutError(f"no acknowledgement arrived in {elapsed:.0f} s")

    def _next(self) -> tuple[int, int, bytes]:
        """Read the next frame; return its kind, flags and payload."""
        header = self._read(_HEADER_BYTES)
        size = int.from_bytes(header[:3], "big")
        if size > _MAX_PAYLOAD_BYTES:
            raise ConnectionError("it did not answer in HTTP/2")
        return header[3], header[4], self._read(size)

    def _read(self, size: int) -> bytes:
        while len(self._unread) < size:
            data = self._socket.recv(1 << 14)
            if not data:
                raise ConnectionError("it closed the connection")
            self._unread += data
        data, self._unread = self._unread[:size], self._unread[size:]
        return data


def _frame(kind: int, flags: int, payload: bytes) -> bytes:
    """Encode an HTTP/2 frame for stream 0, which concerns the connection and no request."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + bytes(4) + payload
