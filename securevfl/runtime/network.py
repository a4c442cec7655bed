"""A party that is slow at random, as one whose processor others use too.

A factor on all computing makes a party slow throughout, and who is slow throughout holds the others back in the end
however far they may go ahead. What bounded staleness gains by is a party that is slow now and then (FDML, Hu et al.
2019): the others go on meanwhile, and it catches up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

DRAWN = 1024  # numbers at a time


@dataclass(frozen=True)
class Pauses:
    """Stop a party before a message that it sends, with probability `share`, for an exponential time of mean `seconds`.

    Pauses are drawn from `seed`, one number a message, so a run has the same ones whatever the machine.
    """

    share: float
    seconds: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.share <= 1 and self.seconds >= 0):
            raise ValueError(f"Pauses needs a share in [0, 1] and seconds >= 0, got {self}")

    def lengths(self) -> Iterator[float]:
        """Yield the seconds of the pause before each message, 0 where there is none."""
        generator = np.random.default_rng(self.seed)
        while True:
            stops = generator.random(DRAWN) < self.share
            yield from np.where(stops, generator.exponential(self.seconds, DRAWN), 0.0).tolist()


@dataclass(frozen=True)
class Network:
    """A symmetric line at every party: `mbps` megabits a second, `rtt_ms` milliseconds there and back.

    message_ms: milliseconds that the library adds to every message, from one party's `send` to the other's `recv`. The
    default is a round value between those measured on one machine (docs/benchmarks.md); `securevfl line` measures all
    three. half_duplex: a party cannot send and receive at the same time, so transfers both ways add up, as on a shared
    medium.
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
        """Seconds one way for a message without its bytes."""
        return (self.rtt_ms / 2.0 + self.message_ms) / 1000.0

    def transfer(self, nbytes: int) -> float:
        """Seconds that `nbytes` occupy a line."""
        return nbytes * 8e-6 / self.mbps
