"""Model of a network connection, and of a party that pauses at random, for simulated times.

If all computation of one party is slower by a constant factor, the party delays all others in the end, however far they
may run ahead. Bounded staleness (parties may be a few iterations apart) helps only if a party is slow now and then, for
example because it shares its processor (FDML, Hu et al. 2019): the others continue meanwhile, and the party catches up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

PAUSES_PER_DRAW = 1024

CONNECTING_ROUND_TRIPS = 4
"""Round trips between a party's call and the agreed session: TCP, TLS 1.3, opening the stream of the line, and offers
and proofs (securevfl/transport/secure_transport.py)."""

CONNECTING_SECONDS = 0.06
"""Seconds that both parties compute while they connect. It is a rounded measurement on one computer."""

CLOSING_ROUND_TRIPS = 2
"""Round trips between a party's last message and the end of its connection: both ends close the line and its stream."""


@dataclass(frozen=True)
class Pauses:
    """Random pauses of a party before the messages that it sends.

    One number is drawn from `seed` for each message, so a run has the same pauses on every computer.

    Attributes:
        share: probability of a pause before a message.
        seconds: mean length of a pause; lengths are exponentially distributed.
        seed: seed of the generator.
    """

    share: float
    seconds: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.share <= 1 and self.seconds >= 0):
            raise ValueError(f"Pauses needs a share in [0, 1] and seconds >= 0, got {self}")

    def lengths(self) -> Iterator[float]:
        """Yield the length of the pause before each message in seconds; 0 if there is no pause."""
        generator = np.random.default_rng(self.seed)
        while True:
            stops = generator.random(PAUSES_PER_DRAW) < self.share
            yield from np.where(stops, generator.exponential(self.seconds, PAUSES_PER_DRAW), 0.0).tolist()


@dataclass(frozen=True)
class Network:
    """The same connection between any two parties.

    `securevfl line` measures the first three values.

    Attributes:
        mbps: bandwidth in megabits per second.
        rtt_ms: round-trip time in milliseconds.
        message_ms: milliseconds that the library adds to each message, from `send` to `recv`. The default is a rounded
            measurement on one computer (docs/benchmarks.md).
        half_duplex: a party cannot send and receive at the same time, as on a shared medium.
    """

    mbps: float = 300.0
    rtt_ms: float = 20.0
    message_ms: float = 0.4
    half_duplex: bool = False

    def __post_init__(self) -> None:
        if not (self.mbps > 0 and self.rtt_ms >= 0 and self.message_ms >= 0):
            raise ValueError(f"Network needs mbps > 0, rtt_ms >= 0 and message_ms >= 0, got {self}")

    @property
    def latency(self) -> float:
        """Seconds from one party to another, without the transfer of the bytes."""
        return (self.rtt_ms / 2.0 + self.message_ms) / 1000.0

    @property
    def connecting(self) -> float:
        """Seconds in which two parties connect and agree on a session, if one of them listens already."""
        return CONNECTING_ROUND_TRIPS * self.rtt_ms / 1000.0 + CONNECTING_SECONDS

    @property
    def closing(self) -> float:
        """Seconds in which two parties close their connection."""
        return CLOSING_ROUND_TRIPS * self.rtt_ms / 1000.0

    def transfer(self, nbytes: int) -> float:
        """Return the seconds that a message of `nbytes` bytes occupies the connection."""
        return nbytes * 8e-6 / self.mbps
