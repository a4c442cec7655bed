"""Counters of one party's costs: seconds by operation, bytes and messages by message type, each by stage of a run."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from enum import IntEnum


class Kind(IntEnum):
    """The kind of work or waiting that time is spent on."""

    ENCRYPTION = 0
    LOCAL = 1
    COMMUNICATION = 2


class Stage(IntEnum):
    """Which part of the run it belongs to."""

    SETUP = 0
    AHEAD = 1  # of the training: what needs no data that only come in it
    TRAIN = 2
    EVALUATE = 3


@dataclass
class Tally:
    """Seconds and calls of one operation, or bytes and messages of one kind."""

    amount: float = 0.0
    count: int = 0

    def add(self, amount: float) -> None:
        self.amount += amount
        self.count += 1


@dataclass
class CostCounters:
    """One party's counters. `ops` by (stage, operation) in seconds; `traffic` by (stage, message) in bytes sent.

    Several threads of the party may write.
    """

    ops: dict[tuple[Stage, str], Tally] = field(default_factory=dict)
    traffic: dict[tuple[Stage, str], Tally] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add_seconds(self, stage: Stage, op: str, seconds: float) -> None:
        with self._lock:
            self.ops.setdefault((stage, op), Tally()).add(seconds)

    def add_message(self, stage: Stage, message: str, nbytes: int) -> None:
        with self._lock:
            self.traffic.setdefault((stage, message), Tally()).add(nbytes)

    def seconds(self, stage: Stage) -> float:
        """Seconds of all operations of a stage."""
        return sum(tally.amount for (own, _), tally in self.ops.items() if own == stage)

    def bytes_sent(self, stage: Stage | None = None) -> int:
        return int(sum(t.amount for (p, _), t in self.traffic.items() if stage in (None, p)))

    def messages_sent(self, stage: Stage | None = None) -> int:
        return sum(t.count for (p, _), t in self.traffic.items() if stage in (None, p))
