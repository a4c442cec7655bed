"""A line between two neighbours: packets arrive in order and once each, also across cut connections.

A line outlives the streams that carry it (`transport.line`). On every new stream both ends first say who they are and
which packet they expect next, then resend from there; what is sent is kept until the neighbour has confirmed it. A
stream on which anything unexpected arrives is refused with the reason and given up; the next one starts from the same
place, so damage heals and nothing refused is ever half taken. After `MAX_REFUSALS` refusals without progress, or
`patience` seconds without a stream, the line fails. A neighbour that has started anew since is refused: its state is
gone. The end that has lost nothing fails then, with PeerLost; the new end, which has nothing to lose yet, stays and
waits for a new other end.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from securevfl.errors import PeerLost, SecureVFLError, TransportError
from securevfl.runtime import eventlog
from securevfl.runtime.inbox import MAX_FRAME_BYTES
from securevfl.transport.stream import Stream

MAX_REFUSALS = 5
_OVERHEAD = 1 << 12  # what wraps a frame in a packet: names, seal


SENDER_WAITS_BYTES = 1 << 26  # unconfirmed bytes at which a sender waits
MAX_UNCONFIRMED_BYTES = 1 << 31  # unconfirmed bytes at which a line is given up; reached only where nobody can wait
_LATECOMER = 2.0  # seconds that a line which never opened is kept for a last word


class Line:
    """One end of a line: what it knows while the streams that carry it come and go, and what makes it give up.

    Everything here is guarded by `changed`, which is told of every change. `deliver` gets each packet once, from one
    thread at a time; `failed` is told when the line is lost.
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
        max_packet: int = MAX_FRAME_BYTES + _OVERHEAD,
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
        self.stream: Stream | None = None
        self._latest: Stream | None = None  # perhaps not open yet
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
            out = self._strikes >= MAX_REFUSALS
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

    def room(self) -> None:
        """Wait while too much is unconfirmed. Not for a thread that delivers: two full lines could wait for ever."""
        with self.changed:
            self.changed.wait_for(lambda: self.kept < SENDER_WAITS_BYTES or self.failure is not None or self.peer_done)

    def send(self, packet: bytes) -> None:
        """Hands a packet over. TransportError if the neighbour is lost or through."""
        with self.changed:
            if self.failure is not None:
                raise self.failure
            if self.peer_done or self.closing:
                raise TransportError(f"{self.me}: {self.peer if self.peer_done else self.me} has finished already")
            self.out.append(packet)
            self.kept += len(packet)
            full = self.kept > MAX_UNCONFIRMED_BYTES
            self.changed.notify_all()
        if full:
            self.fail(
                TransportError(
                    f"{self.peer} takes too little in: {MAX_UNCONFIRMED_BYTES >> 20} MiB wait for it; is it stalled?"
                )
            )

    def begin(self, *, calling: bool) -> Stream:
        """Begin a new stream. It takes over from an earlier one when it opens; the end that calls opens first."""
        with self.changed:
            if self.failure is not None:
                raise self.failure
            self._latest = Stream(self, calling)
            return self._latest

    def close(self, timeout: float) -> bool:
        """Says goodbye once all is confirmed and waits until the neighbour has, too; whether it has.

        A neighbour that has never been there gets a moment to come and hear what is left for it.
        """
        with self.changed:
            self.closing = True
            self.changed.notify_all()
            if not self.changed.wait_for(lambda: self.failure is not None or self.opened, min(timeout, _LATECOMER)):
                return False
            self.changed.wait_for(lambda: self.failure is not None or (self.peer_done and self.stream is None), timeout)
            return self.peer_done

    def abandon(self, error: SecureVFLError) -> None:
        """Give the line up without telling the neighbour, and its stream with it."""
        with self.changed:
            self.failure = self.failure or error
            streams = [stream for stream in (self.stream, self._latest) if stream is not None]
            for stream in streams:
                stream.ended = True
            self.changed.notify_all()
        for stream in streams:
            stream.hang_up()

    def watch(self) -> None:
        """Fails the line if the neighbour has been away for too long. To be called every now and then.

        A stream on which nothing has been heard for half of `patience` is hung up, which leaves the other half for
        another try.
        """
        with self.changed:
            now, stream = time.monotonic(), self.stream
            silent = stream is not None and now - stream.heard > self.patience / 2
            if stream is not None and silent:
                self.down_since = stream.heard
            since = self.down_since
            late = since is not None and not self.peer_done and now - since > self.patience
        if stream is not None and silent:
            eventlog.warn(self.me, "silent", {"peer": self.peer, "seconds": now - stream.heard})
            stream.end("it is connected but silent")
            stream.hang_up()
        if late:
            self.fail(PeerLost(f"{self.peer} is away, {self.patience:g} s without a connection: {self.cause}"))
