"""The bare round trip of a line to a neighbour's port, without the threads of this package.

HTTP/2 requires that every SETTINGS frame is acknowledged at once (RFC 9113, section 6.5.3), and gRPC does so in its
core. The acknowledgement passes everything between the two parties, including proxies and TLS, but no Python code. So
it takes as long as a ping over the connection that training uses, under the same certificates.
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

_HEAD = 9  # bytes of a frame before its payload

_SETTINGS, _PING, _GOAWAY = 4, 6, 7

_ACK = 1

_LONGEST = 1 << 14  # bytes of a frame's payload that need no agreement


def round_trips(credentials: Credentials, peer: str, where: tuple[str, int], count: int, timeout: float) -> list[float]:
    """Seconds of `count` confirmations by the party at (host, port), one after the other.

    timeout: seconds for the connection and for each confirmation. TransportError if the port is not that party's, or
    does not answer.
    """
    host, port = where
    context = credentials.context()
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        with (
            socket.create_connection(where, timeout) as line,
            context.wrap_socket(line, server_hostname=server_name(peer)) as secured,
        ):
            check_peer(secured.getpeercert(binary_form=True) or b"", credentials.ca, peer)
            secured.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            talk = _Talk(secured, timeout)
            secured.sendall(_PREFACE)
            talk.confirmed()
            return [talk.confirmed() for _ in range(count)]
    except OSError as error:
        reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror or error
        raise TransportError(
            f"{credentials.party}: a confirmation of {peer} at {host}:{port} was expected, none came ({reason}); is "
            "something else than a party of this version there?"
        ) from None


class _Talk:
    """The client's side of HTTP/2, as far as settings go."""

    def __init__(self, secured: ssl.SSLSocket, timeout: float) -> None:
        self._socket = secured
        self._timeout = timeout
        self._left = b""

    def confirmed(self) -> float:
        """Send settings that change nothing, and return the seconds until they are confirmed. Raises OSError if they
        are not."""
        start = time.perf_counter()
        self._socket.sendall(_frame(_SETTINGS, 0, b""))
        while (passed := time.perf_counter() - start) < self._timeout:
            kind, flags, payload = self._next()
            if kind == _SETTINGS and flags & _ACK:
                return time.perf_counter() - start
            if kind == _GOAWAY:
                raise ConnectionError("it hung up")
            if kind in (_SETTINGS, _PING) and not flags & _ACK:
                self._socket.sendall(_frame(kind, _ACK, payload if kind == _PING else b""))
        raise TimeoutError(f"nothing else came in {passed:.0f} s")

    def _next(self) -> tuple[int, int, bytes]:
        """Read the next frame, and return its kind, flags and payload."""
        head = self._read(_HEAD)
        size = int.from_bytes(head[:3], "big")
        if size > _LONGEST:
            raise ConnectionError("it does not speak HTTP/2")
        return head[3], head[4], self._read(size)

    def _read(self, size: int) -> bytes:
        while len(self._left) < size:
            data = self._socket.recv(1 << 14)
            if not data:
                raise ConnectionError("it hung up")
            self._left += data
        found, self._left = self._left[:size], self._left[size:]
        return found


def _frame(kind: int, flags: int, payload: bytes) -> bytes:
    """Encode a frame of the connection as a whole, stream 0."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + bytes(4) + payload
