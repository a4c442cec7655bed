"""What one end of a line knows while the streams that carry it come and go, and what makes it give up."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from securevfl.errors import SecureVFLError
from securevfl.runtime import eventlog
from securevfl.runtime.channel import MAX_FRAME

STRIKES = 5
_OVERHEAD = 1 << 12  # what wraps a frame in a packet: names, seal


class Carrier(Protocol):
    """A stream, as the state of its line sees it."""

    ended: bool


class LineState:
    """Everything here is guarded by `changed`, which is told of every change.

    `deliver` gets each packet once, from one thread at a time; `failed` is told when the line is lost.
    """

    def __init__(
        self,
        me: str,
        peer: str,
        deliver: Callable[[bytes], None],
        failed: Callable[[SecureVFLError], None],
        *,
        start: bytes,
        patience: float,
        max_packet: int = MAX_FRAME + _OVERHEAD,
    ) -> None:
        self.me = me
        self.peer = peer
        self.deliver = deliver
        self.start = start
        self.patience = patience
        self.max_packet = max_packet
        self.cause = (
            "it has not called, or not with a certificate of this authority"  # why there is no stream, for people
        )
        self.peer_start = b""
        self.out: deque[bytes] = deque()  # unconfirmed, from number `first` on
        self.first = 0
        self.kept = 0  # bytes of `out`
        self.expected = 0
        self.stream: Carrier | None = None
        self.down_since: float | None = None
        self.closing = False
        self.peer_done = False
        self.failure: SecureVFLError | None = None
        self.changed = threading.Condition()
        self.inward = threading.Lock()  # held while a packet is delivered
        self._failed = failed
        self._strikes = 0
        self._turned_away_since = 0.0

    @property
    def opened(self) -> bool:
        """Whether the neighbour has ever been there."""
        return bool(self.peer_start)

    @property
    def over(self) -> bool:
        """Whether no further stream is needed: both have said goodbye, or the line has failed."""
        with self.changed:
            return self.failure is not None or (self.peer_done and self.closing)

    @property
    def finished(self) -> bool:
        """Whether nothing more can come on this line."""
        with self.changed:
            return self.failure is not None or self.peer_done

    def fail(self, error: SecureVFLError) -> None:
        """Give the line up; where several errors come, the first one stays."""
        with self.changed:
            if self.failure is not None or (self.peer_done and self.closing):
                return
            self.failure = error
            if self.stream is not None:
                self.stream.ended = True
            self.changed.notify_all()
        self._failed(error)

    def strike(self, error: SecureVFLError) -> None:
        """Something was refused, by this end or the other; too often in a row loses the line."""
        with self.changed:
            self._strikes += 1
            out = self._strikes >= STRIKES
        eventlog.warn(self.me, "refused", {"peer": self.peer, "reason": str(error)})
        if out:
            self.fail(error)

    def progressed(self) -> None:
        """Something was taken or confirmed, so refusals count from the beginning. Called with `changed` held."""
        self._strikes = 0

    def turned_away(self, error: SecureVFLError) -> None:
        """Note that the neighbour is connected to another process of this party, perhaps one whose end it has not seen
        yet; give the line up if that lasts longer than `patience`."""
        now = time.monotonic()
        with self.changed:
            self._turned_away_since = self._turned_away_since or now
            late = now - self._turned_away_since > self.patience
        if late:
            self.fail(error)
