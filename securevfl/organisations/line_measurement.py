"""What the lines between organisations take, measured with the library's own messages, for `simulate` to reckon with.

Every party runs this. Turns go in an order that all know, so that one measurement at a time is on its way:

1. each party in turn   takes the bare round trips of the lines on which it calls (`organisations.measure`)
   it -> all            RoundTripTimes   what they took
2. each pair in turn    its first party asks, its second answers
   first -> second      Probe     bytes
   second -> first      ProbeEcho    the same bytes back
   first -> all         ProbeResult     what small and large ones took there and back

A large echo less a small one is twice the time of its bytes; a small echo less the bare round trip is twice what the
library adds to a message. The bytes are random, so that nothing on the way can make them fewer. Parties learn how long
their lines take and nothing else.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import isfinite
from statistics import median

from securevfl.base.roles import Roles
from securevfl.errors import ProtocolError
from securevfl.organisations.bare_round_trip import round_trips
from securevfl.organisations.peer_session import run_session
from securevfl.organisations.peer_settings import PeerSettings, check_among
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.permits import permit_sizes
from securevfl.runtime import eventlog
from securevfl.runtime.channel import Channel
from securevfl.runtime.codec import Message
from securevfl.runtime.disclosure_gate import DisclosingMessage
from securevfl.runtime.network import Network
from securevfl.transport.peers import Peers, split_address
from securevfl.transport.tls import Credentials

_WARM = 10  # echoes before those that count
_TIMES = 30  # echoes and round trips that count
_LARGE_TIMES = 5
_TRIES = 5  # measurements of a pair, until large data take longer than small
_SMALL = 64  # bytes of data
_FIRST, _MOST = 1 << 16, 1 << 24  # bytes of the first and the largest echo
_LONG = 0.2  # seconds of bytes in a large echo, where the largest takes that long
_WAIT = 10.0  # seconds for a bare round trip


class RoundTripTimes(DisclosingMessage, frozen=True):
    """Seconds of a bare round trip to each neighbour that the sender calls."""

    seconds: dict[str, float]


class Probe(Message, frozen=True):
    """A probe that the receiver is to send back to its sender."""

    data: bytes


class ProbeEcho(Message, frozen=True):
    """A probe on its way back to its sender."""

    data: bytes


class ProbeResult(DisclosingMessage, frozen=True):
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


def measure_lines(
    me: str, venue: PeerSettings, *, on_turn: Callable[[int, int], None] | None = None
) -> list[MeasuredLine]:
    """Measures the line of every two parties together with them all; the same list at every party.

    on_turn(turns done, of). The rest as in `join`. Takes some seconds a pair. TransportError and ConfigError as `join`.
    """
    check_among(venue.peers, me)
    terms = {"parties": list(venue.peers.parties), "task": "line"}
    credentials = Credentials(venue.certs, me)
    lines = run_session(
        me,
        venue,
        terms,
        lambda channel: _LineMeasurement(channel, venue.peers, credentials, on_turn).all(),
        ledger=None,
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


def declares(roles: Roles) -> list[MessageDeclaration]:
    """Declare what the messages of the measurement reveal."""
    times = Reveal("plain", "how long lines between parties take")
    return [
        *(MessageDeclaration(kind, *pair, times) for kind in (RoundTripTimes, ProbeResult) for pair in roles.pairs()),
        *(MessageDeclaration(kind, *pair, Reveal("uniform")) for kind in (Probe, ProbeEcho) for pair in roles.pairs()),
    ]


class _LineMeasurement:
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
                self._tell(RoundTripTimes(self._reached[me]))  # 1
            else:
                self._reached[name] = self._channel.recv(name, RoundTripTimes).seconds  # 1
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

    def _probe(self, other: str) -> ProbeResult:
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
            found = ProbeResult(small, median(self._echo(other, data[:size]) for _ in range(_LARGE_TIMES)), size)
            if found.small < found.large:
                break
        return found

    def _echo(self, other: str, data: bytes) -> float:
        """Seconds until the data are back."""
        start = time.perf_counter()
        self._channel.send(other, Probe(data))  # 2
        back = self._channel.recv(other, ProbeEcho)  # 2
        seconds = time.perf_counter() - start
        if back.data != data:
            raise ProtocolError(f"{other} was expected to send back {len(data)} bytes, others came; update the older")
        return seconds

    def _answer(self, one: str) -> ProbeResult:
        """Step 2 of everyone else: sends back what it is asked, until the pair is through."""
        kinds: tuple[type[Probe | ProbeResult], ...] = (Probe, ProbeResult)
        while True:
            _, message = self._channel.recv_any((one,), kinds)
            if isinstance(message, ProbeResult):
                return message
            if len(message.data) > _MOST:
                raise ProtocolError(f"{one} was expected to send at most {_MOST} bytes to be sent back, more came")
            self._channel.send(one, ProbeEcho(message.data))  # 2

    def _line(self, one: str, other: str, found: ProbeResult) -> MeasuredLine:
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
