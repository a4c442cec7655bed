"""A line between two neighbours: packets arrive in order and once each, also across cut connections.

A line outlives the streams that carry it (`transport.stream`). On every new stream both ends first say who they are and
which packet they expect next, then resend from there; what is sent is kept until the neighbour has confirmed it. A
stream on which anything unexpected arrives is refused with the reason and given up; the next one starts from the same
place, so damage heals and nothing refused is ever half taken. After `STRIKES` refusals without progress, or `patience`
seconds without a stream, the line fails. A neighbour that has started anew since is refused: its state is gone. The end
that has lost nothing fails then, with PeerLost; the new end, which has nothing to lose yet, stays and waits for a new
other end.
"""

from __future__ import annotations

import time

from securevfl.errors import PeerLost, SecureVFLError, TransportError
from securevfl.runtime import eventlog
from securevfl.transport.line_state import LineState
from securevfl.transport.stream import Stream

KEPT = 1 << 26  # unconfirmed bytes at which a sender waits
HELD = 1 << 31  # unconfirmed bytes at which a line is given up; reached only where nobody can wait
_LATECOMER = 2.0  # seconds that a line which never opened is kept for a last word


class Line(LineState):
    """One end of a line, which outlives the streams that carry it."""

    stream: Stream | None
    _latest: Stream | None = None  # perhaps not open yet

    def room(self) -> None:
        """Wait while too much is unconfirmed. Not for a thread that delivers: two full lines could wait for ever."""
        with self.changed:
            self.changed.wait_for(lambda: self.kept < KEPT or self.failure is not None or self.peer_done)

    def send(self, packet: bytes) -> None:
        """Hands a packet over. TransportError if the neighbour is lost or through."""
        with self.changed:
            if self.failure is not None:
                raise self.failure
            if self.peer_done or self.closing:
                raise TransportError(f"{self.me}: {self.peer if self.peer_done else self.me} has finished already")
            self.out.append(packet)
            self.kept += len(packet)
            full = self.kept > HELD
            self.changed.notify_all()
        if full:
            self.fail(TransportError(f"{self.peer} takes too little in: {HELD >> 20} MiB wait for it; is it stalled?"))

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
