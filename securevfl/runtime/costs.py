"""Counters of one party's costs: seconds by operation, bytes and messages by message type, each by stage of a run."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any


class Kind(IntEnum):
    """The kinds of work that take time: encryption, other computation, messages, and oblivious transfers."""

    ENCRYPTION = 0
    LOCAL = 1
    COMMUNICATION = 2
    TRANSFERS = 3


class Stage(IntEnum):
    """Stages of a run. The offline phase precedes training and generates material that training uses."""

    SETUP = 0
    OFFLINE = 1
    TRAIN = 2
    EVALUATE = 3


@dataclass
class Tally:
    """Seconds and calls of one operation, or bytes and messages of one message type."""

    amount: float = 0.0
    count: int = 0

    def add(self, amount: float) -> None:
        """Add one call with its seconds, or one message with its bytes."""
        self.amount += amount
        self.count += 1


@dataclass
class CostCounters:
    """One party's counters of seconds, bytes and messages. They are thread-safe.

    Attributes:
        ops: seconds and calls by (stage, operation).
        traffic: bytes and messages sent by (stage, message type).
    """

    ops: dict[tuple[Stage, str], Tally] = field(default_factory=dict)
    traffic: dict[tuple[Stage, str], Tally] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            return {"ops": dict(self.ops), "traffic": dict(self.traffic)}

    def __setstate__(self, counts: dict[str, Any]) -> None:
        vars(self).update(counts, _lock=threading.Lock())

    def add_seconds(self, stage: Stage, op: str, seconds: float) -> None:
        """Count one call of an operation and its seconds."""
        with self._lock:
            self.ops.setdefault((stage, op), Tally()).add(seconds)

    def add_message(self, stage: Stage, message: str, nbytes: int) -> None:
        """Count one message that was sent, and its bytes."""
        with self._lock:
            self.traffic.setdefault((stage, message), Tally()).add(nbytes)

    def seconds(self, stage: Stage) -> float:
        """Return the seconds of all operations of a stage."""
        with self._lock:
            return sum(tally.amount for (s, _), tally in self.ops.items() if s == stage)

    def bytes_sent(self, stage: Stage | None = None) -> int:
        """Return the bytes sent in a stage, or in the whole run."""
        with self._lock:
            return int(sum(tally.amount for (s, _), tally in self.traffic.items() if stage in (None, s)))

    def messages_sent(self, stage: Stage | None = None) -> int:
        """Return the number of messages sent in a stage, or in the whole run."""
        with self._lock:
            return sum(tally.count for (s, _), tally in self.traffic.items() if stage in (None, s))
