"""What the lines between organisations take, measured with the library's own messages, for `simulate` to reckon with.

Every party runs this. Turns go in an order that all know, so that one measurement at a time is on its way:

1. each party in turn   takes the bare round trips of the lines on which it calls (`organisations.measure`)
   it -> all            Reached   what they took
2. each pair in turn    its first party asks, its second answers
   first -> second      Probe     bytes
   second -> first      Probed    the same bytes back
   first -> all         Found     what small and large ones took there and back

A large echo less a small one is twice the time of its bytes; a small echo less the bare round trip is twice what the
library adds to a message. The bytes are random, so that nothing on the way can make them fewer. Parties learn how long
their lines take and nothing else.
"""

from __future__ import annotations

import secrets
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import isfinite
from statistics import median

from securevfl.base.roles import Roles
from securevfl.errors import ProtocolError, TransportError
from securevfl.organisations.conversation import Venue, check_among, converse
from securevfl.protocols.declared import Declared, Reveal, permit_sizes
from securevfl.runtime import eventlog
from securevfl.runtime.channel import Channel, DisclosingMessage
from securevfl.runtime.clock import Network
from securevfl.runtime.codec import Message
from securevfl.transport.certs import check_peer, server_name
from securevfl.transport.peers import Peers, split_address
from securevfl.transport.tls import Credentials

# The bare round trip of a line to a neighbour's port, without the threads that a message of ours passes.
#
# HTTP/2 has every SETTINGS frame confirmed at once (RFC 9113, 6.5.3), and gRPC does that in its core: the confirmation
# comes from behind all that lies between two parties, proxies and TLS included, and before any Python runs. So it takes
# what a ping would, over the line that training takes and under the same certificates.


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


_WARM = 10  # echoes before those that count
_TIMES = 30  # echoes and round trips that count
_LARGE_TIMES = 5
_TRIES = 5  # measurements of a pair, until large data take longer than small
_SMALL = 64  # bytes of data
_FIRST, _MOST = 1 << 16, 1 << 24  # bytes of the first and the largest echo
_LONG = 0.2  # seconds of bytes in a large echo, where the largest takes that long
_WAIT = 10.0  # seconds for a bare round trip


class Reached(DisclosingMessage, frozen=True):
    """Seconds of a bare round trip to each neighbour that the sender calls."""

    seconds: dict[str, float]


class Probe(Message, frozen=True):
    """A probe that the receiver is to send back to its sender."""

    data: bytes


class Probed(Message, frozen=True):
    """A probe on its way back to its sender."""

    data: bytes


class Found(DisclosingMessage, frozen=True):
    """Seconds there and back of small data, and of `size` bytes of it."""

    small: float
    large: float
    size: int


@dataclass(frozen=True)
class MeasuredLine:
    """The line of two parties, as a network to simulate with."""

    one: str
    other: str
    network: Network


def measure_lines(me: str, venue: Venue, *, on_turn: Callable[[int, int], None] | None = None) -> list[MeasuredLine]:
    """Measures the line of every two parties together with them all; the same list at every party.

    on_turn(turns done, of). The rest as in `join`. Takes some seconds a pair. TransportError and ConfigError as `join`.
    """
    check_among(venue.peers, me)
    terms = {"parties": list(venue.peers.parties), "task": "line"}
    credentials = Credentials(venue.certs, me)
    lines = converse(
        me, venue, terms, lambda channel: _Turns(channel, venue.peers, credentials, on_turn).all(), ledger=None
    )
    for line in lines:
        facts = {"mbps": line.network.mbps, "rtt_ms": line.network.rtt_ms, "message_ms": line.network.message_ms}
        eventlog.emit(me, "measured", {"one": line.one, "other": line.other, **facts})
    return lines


def slowest(lines: Sequence[MeasuredLine]) -> Network:
    """Return the network whose every line is as slow, in each figure, as the slowest of these."""
    networks = [line.network for line in lines]
    return Network(
        mbps=min(network.mbps for network in networks),
        rtt_ms=max(each.rtt_ms for each in networks),
        message_ms=max(each.message_ms for each in networks),
    )


def declares(roles: Roles) -> list[Declared]:
    """Declare what the messages of the measurement reveal."""
    times = Reveal("plain", "how long lines between parties take")
    return [
        *(Declared(kind, *pair, times) for kind in (Reached, Found) for pair in roles.pairs()),
        *(Declared(kind, *pair, Reveal("uniform")) for kind in (Probe, Probed) for pair in roles.pairs()),
    ]


class _Turns:
    """One party's part in all turns."""

    def __init__(
        self, channel: Channel, peers: Peers, credentials: Credentials, on_turn: Callable[[int, int], None] | None
    ) -> None:
        self._peers, self._credentials, self._channel = peers, credentials, channel
        self._on_turn = on_turn or (lambda done, of: None)
        self._reached: dict[str, dict[str, float]] = {}

    def all(self) -> list[MeasuredLine]:
        """Both steps, and what they add up to."""
        parties, me = self._peers.parties, self._channel.me
        pairs = list(combinations(parties, 2))
        for done, name in enumerate(parties):
            self._on_turn(done, len(parties) + len(pairs))
            if name == me:
                self._reached[me] = self._reach()
                self._tell(Reached(self._reached[me]))  # 1
            else:
                self._reached[name] = self._channel.recv(name, Reached).seconds  # 1
        lines = []
        for done, (one, other) in enumerate(pairs, len(parties)):
            self._on_turn(done, len(parties) + len(pairs))
            if me == one:
                found = self._probe(other)
                self._tell(found)  # 2
            else:
                found = self._answer(one)
            lines.append(self._line(one, other, found))
        return lines

    def _tell(self, message: Message) -> None:
        for name in self._peers.parties:
            if name != self._channel.me:
                self._channel.send(name, message, permit=permit_sizes(self._channel, name))

    def _reach(self) -> dict[str, float]:
        """Step 1 of the party whose turn it is."""
        me, peers = self._channel.me, self._peers
        return {
            name: median(
                round_trips(self._credentials, name, split_address(name, peers.address[name]), _WARM + _TIMES, _WAIT)[
                    _WARM:
                ]
            )
            for name in peers.neighbours(me)
            if peers.calls(me, name)
        }

    def _probe(self, other: str) -> Found:
        """Step 2 of the party that asks."""
        data = secrets.token_bytes(_MOST)
        for _ in range(_WARM):
            self._echo(other, data[:_SMALL])
        for _ in range(_TRIES):
            # measure small and large data. On a busy machine large ones may come out as quicker than small ones
            small = median(self._echo(other, data[:_SMALL]) for _ in range(_TIMES))
            size = _FIRST
            while size < _MOST and self._echo(other, data[:size]) - small < _LONG:
                size *= 2
            found = Found(small, median(self._echo(other, data[:size]) for _ in range(_LARGE_TIMES)), size)
            if found.small < found.large:
                break
        return found

    def _echo(self, other: str, data: bytes) -> float:
        """Seconds until the data are back."""
        start = time.perf_counter()
        self._channel.send(other, Probe(data))  # 2
        back = self._channel.recv(other, Probed)  # 2
        seconds = time.perf_counter() - start
        if back.data != data:
            raise ProtocolError(f"{other} was expected to send back {len(data)} bytes, others came; update the older")
        return seconds

    def _answer(self, one: str) -> Found:
        """Step 2 of everyone else: sends back what it is asked, until the pair is through."""
        kinds: tuple[type[Probe | Found], ...] = (Probe, Found)
        while True:
            _, message = self._channel.recv_any((one,), kinds)
            if isinstance(message, Found):
                return message
            if len(message.data) > _MOST:
                raise ProtocolError(f"{one} was expected to send at most {_MOST} bytes to be sent back, more came")
            self._channel.send(one, Probed(message.data))  # 2

    def _line(self, one: str, other: str, found: Found) -> MeasuredLine:
        hub = self._peers.hub
        direct = other in self._peers.neighbours(one)
        bare = sum(self._bare(*hop) for hop in ([(one, other)] if direct else [(one, str(hub)), (str(hub), other)]))
        if not (0 < found.small < found.large and found.size > _SMALL and isfinite(found.large)):
            raise ProtocolError(f"{one} was expected to find that large data take longer than small; measure again")
        return MeasuredLine(
            one,
            other,
            Network(
                mbps=2 * (found.size - _SMALL) * 8e-6 / (found.large - found.small),
                rtt_ms=1e3 * bare,
                message_ms=max(0.0, 1e3 * (found.small - bare) / 2),
            ),
        )

    def _bare(self, one: str, other: str) -> float:
        """Seconds of the bare round trip of two neighbours, as the one that calls has found it."""
        caller, called = (one, other) if self._peers.calls(one, other) else (other, one)
        seconds = self._reached[caller].get(called, -1.0)
        if not (0 <= seconds < float("inf")):
            raise ProtocolError(f"{caller} was expected to tell how long its line to {called} takes; update the older")
        return seconds
