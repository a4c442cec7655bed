"""Time on the critical path, split into encryption, local compute and communication.

`VirtualClock` tells what separate computers would take although all parties share one: a party's clock advances by
the CPU time of its own thread, work handed to an executor by that work's own measured time, and a message arrives at

    max(own clock, sender's clock + latency + bytes / bandwidth).

A party has one line: two messages sent (or received) at once follow each other on it. `WallClock` has the same face
and measures what really passes; between organisations the table shows that.

The clock is a 3 x 3 array of seconds, phase by kind: whoever is waited for passes the split of its own path on, so
the last clock of the run holds the split of the critical path.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class Kind(IntEnum):
    """What time went into."""

    ENCRYPTION = 0
    LOCAL = 1
    COMMUNICATION = 2


class Phase(IntEnum):
    """Which part of the run it belongs to."""

    SETUP = 0
    TRAIN = 1
    EVALUATE = 2


Path = NDArray[np.float64]


@dataclass(frozen=True)
class Network:
    """A symmetric line at every party: `mbps` megabits a second, `rtt_ms` milliseconds there and back."""

    mbps: float = 300.0
    rtt_ms: float = 20.0

    def __post_init__(self) -> None:
        if not (self.mbps > 0 and self.rtt_ms >= 0):
            raise ValueError(f"Network needs mbps > 0 and rtt_ms >= 0, got mbps={self.mbps}, rtt_ms={self.rtt_ms}")

    @property
    def latency(self) -> float:
        """Seconds one way."""
        return self.rtt_ms / 2000.0

    def transfer(self, nbytes: int) -> float:
        """Seconds that `nbytes` occupy a line."""
        return nbytes * 8e-6 / self.mbps


class Stamp(NamedTuple):
    """What travels beside a frame in a simulation: when its first byte left, and the sender's path until then."""

    start: float
    path: Path


class Clock(Protocol):
    """One party's time."""

    phase: Phase

    def tick(self, kind: Kind) -> None:
        """Books the time since the last call (of this thread) as `kind`."""

    def offloaded(self, kind: Kind, seconds: float) -> None:
        """Books work that an executor did meanwhile."""

    def departs(self, nbytes: int) -> Stamp | None:
        """A frame leaves now."""

    def arrives(self, stamp: Stamp | None, nbytes: int) -> None:
        """A frame has been waited for and is here."""

    def path(self) -> Path:
        """The split so far (phase x kind, seconds)."""


class VirtualClock:
    """CPU seconds of this party plus the network's."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.phase = Phase.SETUP
        self._path = np.zeros((len(Phase), len(Kind)))
        self._up_free = 0.0
        self._down_free = 0.0
        self._marks = threading.local()
        self._lock = threading.Lock()

    def tick(self, kind: Kind) -> None:
        now = time.thread_time()
        spent = now - getattr(self._marks, "at", now)
        self._marks.at = now
        self.offloaded(kind, spent)

    def offloaded(self, kind: Kind, seconds: float) -> None:
        with self._lock:
            self._path[self.phase, kind] += seconds

    def departs(self, nbytes: int) -> Stamp:
        with self._lock:
            now = float(self._path.sum())
            start = max(now, self._up_free)
            self._up_free = start + self.network.transfer(nbytes)
            path = self._path.copy()
            path[self.phase, Kind.COMMUNICATION] += start - now
            return Stamp(start, path)

    def arrives(self, stamp: Stamp | None, nbytes: int) -> None:
        assert stamp is not None, "a frame of a simulation carries its stamp"
        with self._lock:
            done = max(stamp.start + self.network.latency, self._down_free) + self.network.transfer(nbytes)
            self._down_free = done
            if done > self._path.sum():
                path = stamp.path.copy()
                path[self.phase, Kind.COMMUNICATION] += done - path.sum()
                self._path = path

    def path(self) -> Path:
        with self._lock:
            return self._path.copy()


class WallClock:
    """Seconds on the wall: waiting for a peer is communication, the rest is what it is."""

    def __init__(self) -> None:
        self.phase = Phase.SETUP
        self._path = np.zeros((len(Phase), len(Kind)))
        self._marks = threading.local()
        self._lock = threading.Lock()

    def tick(self, kind: Kind) -> None:
        now = time.perf_counter()
        spent = now - getattr(self._marks, "at", now)
        self._marks.at = now
        with self._lock:
            self._path[self.phase, kind] += spent

    def offloaded(self, kind: Kind, seconds: float) -> None:
        """Nothing: the time that passed meanwhile is booked by `tick`."""

    def departs(self, nbytes: int) -> None:
        return None

    def arrives(self, stamp: Stamp | None, nbytes: int) -> None:
        self.tick(Kind.COMMUNICATION)

    def path(self) -> Path:
        with self._lock:
            return self._path.copy()
