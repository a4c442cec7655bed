"""The time of a run along its critical path: encryption, oblivious transfers, local computation and communication.

A *path* is an array (4, 4) of seconds by stage of the run and kind of work. When a party waits for another party's
message, it replaces its path by a copy of that party's. The last path of the run is the critical path. A *branch* is
the path of one of several threads of a party: `fork` copies the current path, and `join` continues with the longer one.

In a simulation all parties share one computer, and `VirtualClock` computes the time of separate computers. A party's
clock advances by the CPU time of its thread and of its tasks in an executor. A message arrives at
    max(receiver's clock, sender's clock + latency + cost of a message + bytes / bandwidth)
and messages on one connection follow each other. The cost of a message is the delay by the threads that pass it on (L
and o of LogP, Culler et al. 1993). `WallClock` measures real time for runs between organisations.
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

MAX_TRANSFERS = 256  # number of past transfers that a connection stores


Path = NDArray[np.float64]
"""Seconds by stage and kind, shape (4, 4)."""


class Stamp(NamedTuple):
    """The times that accompany a frame in a simulation: its departure, and the sender's path until then."""

    start: float
    path: Path


@dataclass(slots=True)
class Branch:
    """The path of one thread, its current stage, and its time, which is the sum of the path."""

    stage: Stage
    path: Path
    now: float

    def spend(self, kind: Kind, seconds: float) -> None:
        """Add seconds that were spent on this kind of work to the path."""
        self.path[self.stage, kind] += seconds
        self.now += seconds


class _Position(threading.local):
    """The current branch of a thread, initially its party's, and the time of its last tick."""

    def __init__(self, trunk: Branch) -> None:
        self.branch = trunk
        self.ticked: float | None = None


class Clock(ABC):
    """The time of one party, split by stage and kind, with a path for each of its threads.

    Attributes:
        virtual: whether the times are those of separate computers. Messages must then be received in the order in which
            separate computers would receive them.
    """

    virtual: bool
    _now: Callable[[], float]

    def __init__(self) -> None:
        self._here = _Position(Branch(Stage.SETUP, np.zeros((len(Stage), len(Kind))), 0.0))
        self._lock = threading.Lock()

    @property
    def stage(self) -> Stage:
        """The stage that this thread's time is added to."""
        return self._here.branch.stage

    @stage.setter
    def stage(self, stage: Stage) -> None:
        self._here.branch.stage = stage

    def tick(self, kind: Kind) -> None:
        """Add the time since this thread's previous call of `tick` to its path, as time spent on this kind of work."""
        here, now = self._here, self._now()
        if here.ticked is not None:
            with self._lock:
                here.branch.spend(kind, now - here.ticked)
        here.ticked = now

    @abstractmethod
    def offloaded(self, kind: Kind, seconds: float) -> None:
        """Add the seconds that an executor has computed while this thread waited."""

    @abstractmethod
    def departs(self, nbytes: int) -> Stamp | None:
        """Record that a frame of `nbytes` bytes is sent now; return its stamp in a simulation, else None."""

    @abstractmethod
    def arrives(self, stamp: Stamp | None, nbytes: int) -> None:
        """Record that a frame, for which this thread has waited, has arrived."""

    @abstractmethod
    def due(self, stamp: Stamp | None, nbytes: int) -> bool:
        """Return whether a frame that was sent with this stamp has arrived by now, without waiting for it."""

    def path(self) -> Path:
        """Return a copy of this thread's path."""
        with self._lock:
            return self._here.branch.path.copy()

    def fork(self) -> Branch:
        """Return a new path that starts as a copy of this thread's, in the same stage."""
        self.tick(Kind.LOCAL)
        branch = self._here.branch
        with self._lock:
            return Branch(branch.stage, branch.path.copy(), branch.now)

    @contextmanager
    def along(self, branch: Branch) -> Iterator[None]:
        """Add this thread's time to the path of `branch` inside the block."""
        previous = self._here.branch
        self._here.branch, self._here.ticked = branch, self._now()
        try:
            yield
        finally:
            self.tick(Kind.LOCAL)
            self._here.branch = previous

    @abstractmethod
    def join(self, branch: Branch, wait: Callable[[], object]) -> None:
        """Wait for a branch's thread and continue from the later of the two times.

        Args:
            branch: the branch of the other thread.
            wait: returns when that thread has finished.
        """


class VirtualClock(Clock):
    """The time of a simulated computer: CPU seconds of this party plus the times of the network.

    Args:
        network: bandwidth and latency of the simulated connections between parties.
        slowed: factor by which CPU seconds are multiplied, or random pauses.
    """

    virtual = True

    def __init__(self, network: Network, *, slowed: float | Pauses = 1.0) -> None:
        super().__init__()
        self.network = network
        self._slowed = 1.0 if isinstance(slowed, Pauses) else slowed
        self._pauses = slowed.lengths() if isinstance(slowed, Pauses) else None
        self._outgoing = _Connection()
        self._incoming = self._outgoing if network.half_duplex else _Connection()

    def connect(self) -> None:
        """Add the time in which this party connects to the others, before its first frame."""
        self._exchange(self.network.connecting)

    def disconnect(self) -> None:
        """Add the time in which this party closes its connections, after its last frame."""
        self.tick(Kind.LOCAL)
        self._exchange(self.network.closing)

    def _exchange(self, seconds: float) -> None:
        """Add seconds in which this thread exchanges packets that are no frames with all other parties."""
        with self._lock:
            self._here.branch.spend(Kind.COMMUNICATION, seconds)

    def _now(self) -> float:
        return self._slowed * time.thread_time()

    def offloaded(self, kind: Kind, seconds: float) -> None:
        """Add the CPU seconds that an executor has used for this party; see `Clock.offloaded`."""
        with self._lock:
            self._here.branch.spend(kind, self._slowed * seconds)

    def departs(self, nbytes: int) -> Stamp:
        """Stamp a frame that is sent now, with the simulated time of its departure; see `Clock.departs`."""
        branch = self._here.branch
        with self._lock:
            if self._pauses is not None:
                branch.spend(Kind.LOCAL, next(self._pauses))
            start = self._outgoing.reserve(branch.now, self.network.transfer(nbytes))
            path = branch.path.copy()
            path[branch.stage, Kind.COMMUNICATION] += start - branch.now
            return Stamp(start, path)

    def arrives(self, stamp: Stamp | None, nbytes: int) -> None:
        """Move this thread's clock to the simulated arrival of a frame, if that is later; see `Clock.arrives`."""
        assert stamp is not None, "a frame of a simulation has a stamp"
        branch, seconds = self._here.branch, self.network.transfer(nbytes)
        with self._lock:
            done = self._incoming.reserve(stamp.start + self.network.latency, seconds) + seconds
            if done > branch.now:
                branch.path, branch.now = stamp.path.copy(), stamp.start
                branch.spend(Kind.COMMUNICATION, done - stamp.start)

    def due(self, stamp: Stamp | None, nbytes: int) -> bool:
        """Return whether the frame has arrived by the simulated clock; see `Clock.due`."""
        assert stamp is not None, "a frame of a simulation has a stamp"
        return stamp.start + self.network.latency + self.network.transfer(nbytes) <= self._here.branch.now

    def join(self, branch: Branch, wait: Callable[[], object]) -> None:
        """Wait for a thread, and continue from the later of both simulated clocks; see `Clock.join`."""
        self.tick(Kind.LOCAL)
        wait()
        current = self._here.branch
        with self._lock:
            if branch.now > current.now:
                current.path, current.now = branch.path.copy(), branch.now


class WallClock(Clock):
    """Real time. Waiting for a peer counts as communication.

    The sum of a path is the time that has passed since it began, whatever other threads did meanwhile. The time that
    a thread waits in `join` is divided among stages and kinds as the time of the branch that it waits for.
    """

    virtual = False
    _now = staticmethod(time.perf_counter)

    def offloaded(self, kind: Kind, seconds: float) -> None:
        """Do nothing: `tick` adds the time that has passed meanwhile."""

    def departs(self, nbytes: int) -> None:
        """Return None: frames that travel over a real network have no stamp."""
        return

    def arrives(self, stamp: Stamp | None, nbytes: int) -> None:
        """Count the time since the last call of `tick` as communication; see `Clock.arrives`."""
        self.tick(Kind.COMMUNICATION)

    def due(self, stamp: Stamp | None, nbytes: int) -> bool:
        """Return True: only frames that have arrived are in the inbox."""
        return True

    def join(self, branch: Branch, wait: Callable[[], object]) -> None:
        """Wait for a thread, and count the waiting time as the kinds of work that it did; see `Clock.join`."""
        self.tick(Kind.LOCAL)
        current, start = self._here.branch, self._now()
        with self._lock:
            before = branch.path.copy()
        wait()
        self._here.ticked = self._now()
        waited = self._here.ticked - start
        with self._lock:
            spent = branch.path - before
            if spent.any():
                current.path += spent * (waited / spent.sum())
                current.now += waited
            else:
                current.spend(Kind.LOCAL, waited)


class _Connection:
    """One direction of a simulated connection: the time spans in which it is in use, in order.

    A transfer uses the first gap that is long enough. Threads may reserve spans in any order of time, because a thread
    that is ahead must not delay one that is behind.
    """

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []

    def reserve(self, earliest: float, seconds: float) -> float:
        """Reserve a span of `seconds` seconds that starts at `earliest` or later; return its start."""
        spans, start = self._spans, earliest
        if not spans or spans[-1][1] <= earliest:  # the usual case: the connection is free at that time
            spans.append((start, start + seconds))
            del spans[0 : len(spans) > MAX_TRANSFERS]
            return start
        index = bisect_right(spans, earliest, key=itemgetter(1))
        while index < len(spans) and spans[index][0] < start + seconds:
            start = max(start, spans[index][1])
            index += 1
        spans.insert(index, (start, start + seconds))
        del spans[0 : len(spans) > MAX_TRANSFERS]
        return start
