"""Time on the critical path, split into encryption, local compute and communication.

`VirtualClock` tells what separate computers would take although all parties share one: a party's clock advances by
the CPU time of its own thread, work handed to an executor by that work's own measured time, and a message arrives at

    max(own clock, sender's clock + latency + cost a message + bytes / bandwidth).

A party has one line: two messages sent (or received) at once follow each other on it with their bytes; on a line
that is half duplex, what it sends and what it receives follow each other too. The cost a
message is what the threads between a sender and a receiver take to hand it on, most of it waking up; other messages
are handed on meanwhile, so it delays each and occupies nothing (L and o of LogP, Culler et al. 1993, seen from
outside). `WallClock` has the same face and measures what really passes; between organisations the table shows that.

A path is a 4 x 3 array of seconds, stage by kind: whoever is waited for passes the split of its own path on, so
the last clock of the run holds the split of the critical path.

Two threads of a party go along two paths: `fork` makes the second, which starts where the first one is; a thread that
goes `along` it books its time there; `join` waits for that thread and leaves one path, the one that took longer. So
work that overlaps counts once. It is assumed that a party has a processor for each of its threads. A thread that goes
along no path of its own adds to its party's.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from securevfl.runtime.costs import Kind, Stage
from securevfl.runtime.network import Network, Pauses

SPANS = 256  # of a line's last transfers that are remembered


Path = NDArray[np.float64]


class Stamp(NamedTuple):
    """What travels beside a frame in a simulation: when its first byte left, and the sender's path until then."""

    start: float
    path: Path


@dataclass(slots=True)
class Branch:
    """The path of one thread (stage x kind, seconds), the stage that it is in, and its time, the sum of the path."""

    stage: Stage
    path: Path
    now: float

    def spend(self, kind: Kind, seconds: float) -> None:
        """Goes on by so many seconds."""
        self.path[self.stage, kind] += seconds
        self.now += seconds


class _Here(threading.local):
    """The position of a thread in time: its branch, at first its party's own, and when it last ticked."""

    def __init__(self, trunk: Branch) -> None:
        self.branch = trunk
        self.at: float | None = None


class Clock(ABC):
    """The time of one party, split by stage and kind: a path and a mark for each of its threads.

    virtual: whether it tells what separate computers would take, and messages are to be taken in the order of such.
    """

    virtual: bool
    _now: Callable[[], float]

    def __init__(self) -> None:
        self._here = _Here(Branch(Stage.SETUP, np.zeros((len(Stage), len(Kind))), 0.0))
        self._lock = threading.Lock()

    @property
    def stage(self) -> Stage:
        """The stage that this thread's time is booked in."""
        return self._here.branch.stage

    @stage.setter
    def stage(self, stage: Stage) -> None:
        self._here.branch.stage = stage

    def tick(self, kind: Kind) -> None:
        """Books the time since the last call (of this thread) as `kind`."""
        here, now = self._here, self._now()
        if here.at is not None:
            with self._lock:
                here.branch.spend(kind, now - here.at)
        here.at = now

    @abstractmethod
    def offloaded(self, kind: Kind, seconds: float) -> None:
        """Books work that an executor did meanwhile."""

    @abstractmethod
    def departs(self, nbytes: int) -> Stamp | None:
        """Book that a frame of `nbytes` bytes leaves now, and return what travels beside it in a simulation."""

    @abstractmethod
    def arrives(self, stamp: Stamp | None, nbytes: int) -> None:
        """Book that a frame that this thread has waited for is here."""

    @abstractmethod
    def due(self, stamp: Stamp | None, nbytes: int) -> bool:
        """Whether a frame that has left is here by now, without waiting."""

    def path(self) -> Path:
        """Return the time spent so far on this thread's path (stage x kind, seconds)."""
        with self._lock:
            return self._here.branch.path.copy()

    def fork(self) -> Branch:
        """Make a second path, which starts where this thread's path is and in its stage."""
        self.tick(Kind.LOCAL)
        own = self._here.branch
        with self._lock:
            return Branch(own.stage, own.path.copy(), own.now)

    @contextmanager
    def along(self, branch: Branch) -> Iterator[None]:
        """While it is entered, this thread's time is booked on that path."""
        before = self._here.branch
        self._here.branch, self._here.at = branch, self._now()
        try:
            yield
        finally:
            self.tick(Kind.LOCAL)
            self._here.branch = before

    @abstractmethod
    def join(self, branch: Branch, wait: Callable[[], object]) -> None:
        """Call `wait`, which returns when the branch's thread has finished, and go on from the later of the two
        times."""


class VirtualClock(Clock):
    """CPU seconds of this party plus the network's. A party is `slowed` that takes so many times as long to compute, or
    that stops at random (`Pauses`)."""

    virtual = True

    def __init__(self, network: Network, *, slowed: float | Pauses = 1.0) -> None:
        super().__init__()
        self.network = network
        self._slowed = 1.0 if isinstance(slowed, Pauses) else slowed
        self._pauses = slowed.lengths() if isinstance(slowed, Pauses) else None
        self._up = _Line()
        self._down = self._up if network.half_duplex else _Line()

    def _now(self) -> float:
        return self._slowed * time.thread_time()

    def offloaded(self, kind: Kind, seconds: float) -> None:
        with self._lock:
            self._here.branch.spend(kind, self._slowed * seconds)

    def departs(self, nbytes: int) -> Stamp:
        own = self._here.branch
        with self._lock:
            if self._pauses is not None:
                own.spend(Kind.LOCAL, next(self._pauses))
            start = self._up.take(own.now, self.network.transfer(nbytes))
            path = own.path.copy()
            path[own.stage, Kind.COMMUNICATION] += start - own.now
            return Stamp(start, path)

    def arrives(self, stamp: Stamp | None, nbytes: int) -> None:
        assert stamp is not None, "a frame of a simulation carries its stamp"
        own, seconds = self._here.branch, self.network.transfer(nbytes)
        with self._lock:
            done = self._down.take(stamp.start + self.network.latency, seconds) + seconds
            if done > own.now:
                own.path, own.now = stamp.path.copy(), stamp.start
                own.spend(Kind.COMMUNICATION, done - stamp.start)

    def due(self, stamp: Stamp | None, nbytes: int) -> bool:
        assert stamp is not None, "a frame of a simulation carries its stamp"
        return stamp.start + self.network.latency + self.network.transfer(nbytes) <= self._here.branch.now

    def join(self, branch: Branch, wait: Callable[[], object]) -> None:
        self.tick(Kind.LOCAL)
        wait()
        own = self._here.branch
        with self._lock:
            if branch.now > own.now:
                own.path, own.now = branch.path.copy(), branch.now


class WallClock(Clock):
    """Seconds on the wall: waiting for a peer is communication, the rest is what it is.

    A path is as long as the time that has passed since it began, whatever other threads did meanwhile. Where a thread
    waits in `join`, that time is split as the branch spent it.
    """

    virtual = False
    _now = staticmethod(time.perf_counter)

    def offloaded(self, kind: Kind, seconds: float) -> None:
        """Nothing: the time that passed meanwhile is booked by `tick`."""

    def departs(self, nbytes: int) -> None:
        return None

    def arrives(self, stamp: Stamp | None, nbytes: int) -> None:
        self.tick(Kind.COMMUNICATION)

    def due(self, stamp: Stamp | None, nbytes: int) -> bool:
        return True

    def join(self, branch: Branch, wait: Callable[[], object]) -> None:
        self.tick(Kind.LOCAL)
        own, since = self._here.branch, self._now()
        with self._lock:
            before = branch.path.copy()
        wait()
        self._here.at = self._now()
        waited = self._here.at - since
        with self._lock:
            spent = branch.path - before
            if spent.any():
                own.path += spent * (waited / spent.sum())
                own.now += waited
            else:
                own.spend(Kind.LOCAL, waited)


class _Line:
    """The spans of seconds in which one direction of a line is taken, in order.

    A transfer takes the first gap that is long enough. Threads ask in any order of their own times: one that is ahead
    must not hold up one that is behind.
    """

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []

    def take(self, earliest: float, seconds: float) -> float:
        """When a transfer of so many seconds starts."""
        spans, start = self._spans, earliest
        if not spans or spans[-1][1] <= earliest:  # most often
            spans.append((start, start + seconds))
            del spans[0 : len(spans) > SPANS]
            return start
        place = bisect_right(spans, earliest, key=itemgetter(1))
        while place < len(spans) and spans[place][0] < start + seconds:
            start = max(start, spans[place][1])
            place += 1
        spans.insert(place, (start, start + seconds))
        del spans[0 : len(spans) > SPANS]
        return start
