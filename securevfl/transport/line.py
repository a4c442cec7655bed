"""A line between two neighbours: packets arrive in order and exactly once, even if connections break.

A neighbour is a party (or hub) with a direct connection. A line outlives the streams (gRPC calls) that carry it
(`transport.stream`). At the start of every stream both ends send an id of their process and the number of the next
packet that they expect, and resend from there. A sent packet is stored until the neighbour has confirmed it. If an
unexpected message arrives, the receiver refuses the stream and states the reason; the next stream resumes from the same
packet. Damaged data are therefore resent, and a refused packet is never processed in part. The line fails after
`MAX_REFUSALS` refusals without progress, or after `patience` seconds without a stream.

A neighbour whose process was restarted has lost its state, so the line cannot continue. The end that was not restarted
refuses it and fails with PeerLost. The restarted end has no state to lose yet, and waits until the other end is
restarted too.
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
_OVERHEAD = 1 << 12  # maximum number of bytes by which a packet is longer than its frame (names, encryption)
SENDER_WAITS_BYTES = 1 << 26  # a sender waits while at least this number of bytes is unconfirmed
MAX_UNCONFIRMED_BYTES = 1 << 31  # unconfirmed bytes at which the line fails, if threads that cannot wait still send
_LATECOMER = 2.0  # seconds that `close` waits for a neighbour that has never connected


class Line:
    """One end of a line: the state that outlives its streams, and the conditions under which it fails.

    The condition `changed` guards all attributes and is notified of every change.

    Args:
        me: name of this party.
        peer: name of the neighbour.
        deliver: called with each packet once, from one thread at a time.
        failed: called with the error when the line fails.
        start: 16 random bytes that identify this process.
        patience: seconds without a connection after which the line fails.
        max_packet: maximum size of a packet in bytes.
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
        self.cause = (  # why there is no stream at present, for error messages
            "it has not called, or not with a certificate of this authority"
        )
        self.peer_start = b""
        self.out: deque[bytes] = deque()  # unconfirmed packets, from number `first` on
        self.first = 0
        self.unconfirmed_bytes = 0  # size of `out` in bytes
        self.expected = 0
        self.stream: Stream | None = None
        self.streams: set[Stream] = set()  # all streams that have begun and not ended; they may not be open yet
        self.down_since: float | None = None
        self.closing = False
        self.peer_done = False
        self.failure: SecureVFLError | None = None
        self.changed = threading.Condition()
        self.inward = threading.Lock()  # held by the stream that is delivering a packet
        self._failed = failed
        self._refusals = 0
        self._other_process_since = 0.0

    @property
    def opened(self) -> bool:
        """Whether the neighbour has connected at least once."""
        return bool(self.peer_start)

    @property
    def over(self) -> bool:
        """Whether no further stream is needed, because both ends have closed the line or it has failed."""
        with self.changed:
            return self.failure is not None or (self.peer_done and self.closing)

    @property
    def finished(self) -> bool:
        """Whether no more packets can arrive on this line."""
        with self.changed:
            return self.failure is not None or self.peer_done

    def fail(self, error: SecureVFLError) -> None:
        """End the line with an error. If there are several errors, the first one counts."""
        with self.changed:
            if self.failure is not None or (self.peer_done and self.closing):
                return
            self.failure = error
            if self.stream is not None:
                self.stream.ended = True
            self.changed.notify_all()
        self._failed(error)

    def count_refusal(self, error: SecureVFLError) -> None:
        """Count a message that one of the ends refused. Too many in a row end the line."""
        with self.changed:
            self._refusals += 1
            too_many = self._refusals >= MAX_REFUSALS
        eventlog.warn(self.me, "refused", {"peer": self.peer, "reason": str(error)})
        if too_many:
            self.fail(error)

    def note_progress(self) -> None:
        """Reset the count of refusals, because a packet was accepted or confirmed. The caller holds `changed`."""
        self._refusals = 0

    def note_other_process(self, error: SecureVFLError) -> None:
        """Record that the neighbour is still connected to another process of this party, for example an earlier one.

        If that process has ended, the neighbour may not have noticed yet. The line fails if it has not disconnected
        from that process after `patience` seconds.
        """
        now = time.monotonic()
        with self.changed:
            self._other_process_since = self._other_process_since or now
            late = now - self._other_process_since > self.patience
        if late:
            self.fail(error)

    def wait_for_space(self) -> None:
        """Wait while too many bytes are unconfirmed.

        A thread that delivers packets must not wait, because two full lines could then wait for each other.
        """
        with self.changed:
            self.changed.wait_for(
                lambda: self.unconfirmed_bytes < SENDER_WAITS_BYTES or self.failure is not None or self.peer_done
            )

    def send(self, packet: bytes) -> None:
        """Queue a packet, or raise TransportError if the neighbour is lost or has finished."""
        with self.changed:
            if self.failure is not None:
                raise self.failure
            if self.peer_done or self.closing:
                raise TransportError(
                    f"no packet can be sent to {self.peer}, because "
                    f"{self.peer if self.peer_done else self.me} has closed the connection",
                    code="SVFL-PEER-AWAY",
                    peer=self.peer,
                )
            self.out.append(packet)
            self.unconfirmed_bytes += len(packet)
            full = self.unconfirmed_bytes > MAX_UNCONFIRMED_BYTES
            self.changed.notify_all()
        if full:
            self.fail(
                TransportError(
                    f"{self.peer} receives too slowly: {MAX_UNCONFIRMED_BYTES >> 20} MiB are waiting",
                    "check that the peer is not stalled",
                    code="SVFL-PEER-AWAY",
                    peer=self.peer,
                )
            )

    def begin(self, *, calling: bool) -> Stream:
        """Create a new stream for this line, which replaces the earlier one when it opens.

        Args:
            calling: whether this end calls. That end opens the stream first.

        Returns:
            The stream.
        """
        with self.changed:
            if self.failure is not None:
                raise self.failure
            stream = Stream(self, calling)
            self.streams.add(stream)
            return stream

    def close(self, timeout: float) -> bool:
        """Close this end once all packets are confirmed, and wait until the neighbour has closed its end.

        A neighbour that has never connected gets two seconds to connect and receive the remaining packets.

        Args:
            timeout: seconds to wait.

        Returns:
            Whether the neighbour has closed its end.
        """
        with self.changed:
            self.closing = True
            self.changed.notify_all()
            if not self.changed.wait_for(lambda: self.failure is not None or self.opened, min(timeout, _LATECOMER)):
                return False
            self.changed.wait_for(lambda: self.failure is not None or (self.peer_done and self.stream is None), timeout)
            return self.peer_done

    def abandon(self, error: SecureVFLError) -> None:
        """End the line and its streams without notifying the neighbour."""
        with self.changed:
            self.failure = self.failure or error
            streams = [*self.streams]
            for stream in streams:
                stream.ended = True
            self.changed.notify_all()
        for stream in streams:
            stream.hang_up()

    def watch(self) -> None:
        """End the line if the neighbour has been away for too long. To be called regularly.

        A stream on which nothing has arrived for half of `patience` is cut. The other half is left for a new stream.
        """
        with self.changed:
            now, stream = time.monotonic(), self.stream
            silent = stream is not None and now - stream.last_received > self.patience / 2
            if stream is not None and silent:
                self.down_since = stream.last_received
            since = self.down_since
            late = since is not None and not self.peer_done and now - since > self.patience
        if stream is not None and silent:
            eventlog.warn(self.me, "peer silent", {"peer": self.peer, "seconds": now - stream.last_received})
            stream.end("it is connected but silent")
            stream.hang_up()
        if late:
            self.fail(
                PeerLost(
                    f"{self.peer} has been disconnected for {self.patience:g} s ({self.cause.rstrip('.')})",
                    code="SVFL-PEER-LOST",
                    peer=self.peer,
                )
            )
