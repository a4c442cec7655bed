"""Measure the network between organisations with messages of this library, as input for simulations.

A *line* is the connection of two parties, and the *bare round trip* its ping time without this library. All parties run
this at the same time and know the order of turns, so that one measurement takes place at a time:
1. each party in turn   measures the bare round trips to the parties that it calls (`organisations.bare_round_trip`)
   it -> all            RoundTripTimes   their durations
2. each pair in turn    its first party sends, its second party echoes
   first -> second      Probe         random bytes
   second -> first      ProbeEcho     the same bytes
   first -> all         ProbeResult   the durations of a small and of a large echo

Comments refer to these steps by number. Bandwidth follows from the difference of the two echoes, and the library's
delay from the small echo minus the bare round trip. The parties learn only durations.
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

_WARMUP_ECHOES = 10
_MEASURED_ECHOES = 30  # number of echoes of each size, and of bare round trips
_LARGE_ECHOES = 5
# a pair is measured at most this often, until its large echo takes longer than its small one
_TRIES = 5
_SMALL_BYTES = 64
_FIRST_BYTES, _MAX_BYTES = 1 << 16, 1 << 24  # sizes in bytes of a pair's first large echo and of the largest one
# a large echo grows until it takes this many seconds one way, or has _MAX_BYTES
_MIN_LARGE_SECONDS = 0.2
_ROUND_TRIP_TIMEOUT = 10.0  # seconds for a bare round trip


class RoundTripTimes(DisclosingMessage, frozen=True):
    """The bare round trips, in seconds, that the sender has measured to the parties that it calls."""

    seconds: dict[str, float]


class Probe(Message, frozen=True):
    """Bytes that the receiver echoes."""

    data: bytes


class ProbeEcho(Message, frozen=True):
    """The bytes of a probe, on their way back."""

    data: bytes


class ProbeResult(DisclosingMessage, frozen=True):
    """Durations of echoes in seconds.

    Attributes:
        small: duration of a small echo.
        large: duration of an echo of `size` bytes.
        size: bytes of the large echo.
    """

    small: float
    large: float
    size: int


@dataclass(frozen=True)
class MeasuredLine:
    """The line between two parties, as a network for simulations."""

    one: str
    other: str
    network: Network


def measure_lines(
    me: str, settings: PeerSettings, *, on_turn: Callable[[int, int], None] | None = None
) -> list[MeasuredLine]:
    """Measure the lines between every two parties. All parties call this function at the same time.

    It takes some seconds for each pair.

    Args:
        me: name of this party.
        settings: addresses, certificates and time limits.
        on_turn: is called with the number of turns done and the total.

    Returns:
        The lines, the same list at every party.

    Raises:
        TransportError: a party cannot be reached, was refused or has stopped.
        ConfigError: a setting is invalid.
    """
    check_among(settings.peers, me)
    handshake = {"parties": list(settings.peers.parties), "task": "line"}
    credentials = Credentials(settings.certs, me)
    lines = run_session(
        me,
        settings,
        handshake,
        lambda channel: _LineMeasurement(channel, settings.peers, credentials, on_turn).run(),
        ledger=None,
    )
    for line in lines:
        facts = {"mbps": line.network.mbps, "rtt_ms": line.network.rtt_ms, "message_ms": line.network.message_ms}
        eventlog.emit(me, "line measured", {"one": line.one, "other": line.other, **facts})
    return lines


def slowest(lines: Sequence[MeasuredLine]) -> Network:
    """Return a network for simulations that has the worst latency and the worst bandwidth of these lines."""
    networks = [line.network for line in lines]
    return Network(
        mbps=min(network.mbps for network in networks),
        rtt_ms=max(network.rtt_ms for network in networks),
        message_ms=max(network.message_ms for network in networks),
    )


def declares(roles: Roles) -> list[MessageDeclaration]:
    """Declare what the messages of the measurement reveal."""
    times = Reveal("plain", "durations on the lines between parties")
    return [
        *(MessageDeclaration(kind, *pair, times) for kind in (RoundTripTimes, ProbeResult) for pair in roles.pairs()),
        *(MessageDeclaration(kind, *pair, Reveal("uniform")) for kind in (Probe, ProbeEcho) for pair in roles.pairs()),
    ]


class _LineMeasurement:
    """One party's part in the measurement, for all turns."""

    def __init__(
        self,
        channel: Channel,
        peers: Peers,
        credentials: Credentials,
        on_turn: Callable[[int, int], None] | None,
        max_bytes: int = _MAX_BYTES,
    ) -> None:
        self._peers, self._credentials, self._channel, self._max_bytes = peers, credentials, channel, max_bytes
        self._on_turn = on_turn or (lambda done, total: None)
        self._round_trips: dict[str, dict[str, float]] = {}

    def run(self) -> list[MeasuredLine]:
        """Run both steps, and compute the latency and bandwidth between every two parties."""
        parties, me = self._peers.parties, self._channel.me
        pairs = list(combinations(parties, 2))
        for done, name in enumerate(parties):
            self._on_turn(done, len(parties) + len(pairs))
            if name == me:
                self._round_trips[me] = self._measure_round_trips()
                self._send_to_all(RoundTripTimes(self._round_trips[me]))  # step 1
            else:
                self._round_trips[name] = self._channel.recv(name, RoundTripTimes).seconds  # step 1
        lines = []
        for done, (one, other) in enumerate(pairs, len(parties)):
            self._on_turn(done, len(parties) + len(pairs))
            if me == one:
                result = self._probe(other)
                self._send_to_all(result)  # step 2
            else:
                result = self._answer(one)
            lines.append(self._line(one, other, result))
        return lines

    def _send_to_all(self, message: Message) -> None:
        for name in self._peers.parties:
            if name != self._channel.me:
                self._channel.send(name, message, permit=permit_sizes(self._channel, name))

    def _measure_round_trips(self) -> dict[str, float]:
        """Measure the bare round trips of step 1, in this party's turn."""
        me, peers = self._channel.me, self._peers
        seconds = {}
        for name in peers.neighbours(me):
            if peers.calls(me, name):
                address = split_address(name, peers.address[name])
                count = _WARMUP_ECHOES + _MEASURED_ECHOES
                trips = round_trips(self._credentials, name, address, count, _ROUND_TRIP_TIMEOUT)
                seconds[name] = median(trips[_WARMUP_ECHOES:])
        return seconds

    def _probe(self, other: str) -> ProbeResult:
        """Measure echoes in step 2, as the first party of a pair."""
        data = secrets.token_bytes(self._max_bytes)
        for _ in range(_WARMUP_ECHOES):
            self._echo(other, data[:_SMALL_BYTES])
        for _ in range(_TRIES):  # repeat, because on a busy machine a large echo may take less time than a small one
            small = median(self._echo(other, data[:_SMALL_BYTES]) for _ in range(_MEASURED_ECHOES))
            size = _FIRST_BYTES
            while size < self._max_bytes and self._echo(other, data[:size]) - small < _MIN_LARGE_SECONDS:
                size *= 2
            result = ProbeResult(small, median(self._echo(other, data[:size]) for _ in range(_LARGE_ECHOES)), size)
            if result.small < result.large:
                break
        return result

    def _echo(self, other: str, data: bytes) -> float:
        """Send data to the other party and return the seconds until its echo has arrived."""
        start = time.perf_counter()
        self._channel.send(other, Probe(data))  # step 2
        echo = self._channel.recv(other, ProbeEcho)  # step 2
        seconds = time.perf_counter() - start
        if echo.data != data:
            raise ProtocolError(
                f"{other} answered a probe of {len(data)} bytes with other bytes than it had received",
                code="SVFL-PROTOCOL-VALUES",
                peer=other,
            )
        return seconds

    def _answer(self, one: str) -> ProbeResult:
        """Echo the probes of the pair's first party in step 2, until it sends its result.

        A party outside the pair receives no probes, so it only waits for the result.

        Args:
            one: name of the first party.

        Returns:
            The result.

        Raises:
            ProtocolError: a probe is too large.
        """
        kinds: tuple[type[Probe | ProbeResult], ...] = (Probe, ProbeResult)
        while True:
            _, message = self._channel.recv_any((one,), kinds)
            if isinstance(message, ProbeResult):
                return message
            if len(message.data) > self._max_bytes:
                raise ProtocolError(
                    f"{one} sent a probe of more than {self._max_bytes} bytes", code="SVFL-PROTOCOL-SIZE", peer=one
                )
            self._channel.send(one, ProbeEcho(message.data))  # step 2

    def _line(self, one: str, other: str, result: ProbeResult) -> MeasuredLine:
        hub = self._peers.hub
        direct = other in self._peers.neighbours(one)
        hops = [(one, other)] if direct else [(one, str(hub)), (str(hub), other)]
        round_trip = sum(self._round_trip(*hop) for hop in hops)
        if not (0 < result.small < result.large and result.size > _SMALL_BYTES and isfinite(result.large)):
            raise ProtocolError(
                f"the measurement of {one} cannot be used, because a large probe took no longer than a small one",
                "run the command again, when the line and both computers have less to do",
                code="SVFL-PROTOCOL-VALUES",
                peer=one,
            )
        return MeasuredLine(
            one,
            other,
            Network(
                mbps=2 * (result.size - _SMALL_BYTES) * 8e-6 / (result.large - result.small),
                rtt_ms=1e3 * round_trip,
                message_ms=max(0.0, 1e3 * (result.small - round_trip) / 2),
            ),
        )

    def _round_trip(self, one: str, other: str) -> float:
        """Return the seconds of a bare round trip over one connection, measured by the party that opens it."""
        caller, called = (one, other) if self._peers.calls(one, other) else (other, one)
        seconds = self._round_trips[caller].get(called, -1.0)
        if not (0 <= seconds < float("inf")):
            raise ProtocolError(
                f"{caller} did not report the round-trip time of its line to {called}",
                "install the same version of securevfl at both parties",
                code="SVFL-PROTOCOL-VALUES",
                peer=caller,
            )
        return seconds
