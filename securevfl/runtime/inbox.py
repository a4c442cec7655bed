"""Queues of received frames by sender and subchannel, and the interface of a transport.

A frame is an encoded message with its header (`securevfl.runtime.codec`). In a simulation it has a stamp: its time of
departure by the sender's simulated clock. A *subchannel* is an ordered stream of messages between two parties.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple, Protocol

from securevfl.errors import FrameError, ProtocolError, TransportError
from securevfl.runtime.abort import Abort
from securevfl.runtime.clock import Stamp
from securevfl.runtime.codec import Frame, decode_frame, decode_message

MAX_FRAME_BYTES = 1 << 30  # largest frame in bytes; protocols split larger messages


class Wire(Protocol):
    """Transport of frames. It must preserve the order of the frames between two parties."""

    def post(self, to: str, frame: bytes, stamp: Stamp | None) -> None:
        """Send a frame, possibly without waiting for its arrival; raise TransportError if the peer is disconnected."""


class Arrival(NamedTuple):
    """A received frame in a queue; `number` is the number of frames that this party had received before it."""

    frame: Frame
    stamp: Stamp | None
    nbytes: int
    number: int

    @property
    def order(self) -> tuple[float, int]:
        """Key by which arrived frames are sorted: simulated time of departure, then order of arrival."""
        return (0.0 if self.stamp is None else self.stamp.start, self.number)


class Inbox:
    """The received frames of one party. A transport puts frames in, and the party's channel takes them out.

    Args:
        me: name of the party.
        peers: names of all other parties.
        session: the bytes that identify the run.
        max_frame: size of the largest frame that is accepted, in bytes.
    """

    def __init__(self, me: str, peers: Iterable[str], session: bytes, *, max_frame: int = MAX_FRAME_BYTES) -> None:
        self.me = me
        self.session = session
        self._peers = frozenset(peers)
        self._max_frame = max_frame
        self._queues: dict[tuple[str, str], deque[Arrival]] = defaultdict(deque)
        self._next: dict[tuple[str, str], int] = {}
        self._arrived = 0
        self._failure: BaseException | None = None
        self._changed = threading.Condition()

    def deliver(self, data: bytes | memoryview, stamp: Stamp | None = None, *, peer: str | None = None) -> None:
        """Check a frame and append it to its queue; a rejected frame changes nothing.

        Args:
            data: the encoded frame.
            stamp: time of departure in a simulation; otherwise None.
            peer: the sender that the transport has authenticated; a frame that names another sender is rejected.

        Raises:
            FrameError: if the frame is malformed, too large or out of order.
            ProtocolError: if the frame is of another session, or not from a peer to this party.
        """
        if len(data) > self._max_frame:
            raise FrameError(
                f"{self.me}: received a frame of {len(data):,} bytes, the limit is {self._max_frame:,}",
                code="SVFL-FRAME",
            )
        frame = decode_frame(data)
        if frame.session != self.session:
            raise ProtocolError(f"{self.me}: received a frame of another session", code="SVFL-FRAME")
        if frame.receiver != self.me or frame.sender not in self._peers or peer not in (None, frame.sender):
            raise ProtocolError(
                f"{self.me}: received a frame that no peer has addressed to this party", code="SVFL-FRAME"
            )
        key = (frame.sender, frame.subchannel)
        with self._changed:
            expected = self._next.get(key, 0)  # `get` creates no entry, so a rejected frame changes nothing
            if frame.seq != expected:
                raise FrameError(
                    f"{self.me}: received frame {frame.seq} of {frame.sender}, expected frame {expected}: a frame was "
                    "replayed, lost or reordered",
                    code="SVFL-FRAME",
                )
            self._next[key] = expected + 1
            if frame.kind == Abort.__name__:
                abort = decode_message(Abort, frame.payload)
                self._fail(abort.error(frame.sender, self._peers))
            else:
                self._queues[key].append(Arrival(frame, stamp, len(data), self._arrived))
                self._arrived += 1
                self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Raise this error in all threads that wait for a frame, unless an earlier error is already raised there."""
        with self._changed:
            self._fail(error)

    def reason(self, error: TransportError) -> TransportError:
        """Return the error that has ended the session, which explains why sending failed; else `error`."""
        with self._changed:
            return self._failure if isinstance(self._failure, TransportError) else error

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._changed.notify_all()

    def take(
        self, senders: Collection[str], subchannel: str, timeout: float, *, awaited: Collection[str] = ()
    ) -> Arrival:
        """Wait for a frame and remove it from its queue.

        Frames that arrived before a failure are still returned.

        Args:
            senders: the parties whose frames are accepted.
            subchannel: the subchannel of the frame.
            timeout: seconds to wait.
            awaited: no frame is returned until a frame of each of these senders has arrived.

        Returns:
            The frame with the smallest `Arrival.order`.

        Raises:
            TransportError: if no frame arrived in time.
        """
        with self._changed:
            queues = [self._queues[sender, subchannel] for sender in senders]
            needed = [self._queues[sender, subchannel] for sender in awaited]
            if not self._changed.wait_for(lambda: (all(needed) and any(queues)) or self._failure is not None, timeout):
                names = " or ".join(sorted(senders))
                raise TransportError(
                    f"{self.me}: received no message from {names} within {timeout:g} s",
                    code="SVFL-PEER-AWAY",
                    away=min(senders) if len(senders) == 1 else "",
                )
            if ready := [queue for queue in queues if queue]:
                return (ready[0] if len(ready) == 1 else min(ready, key=lambda queue: queue[0].order)).popleft()
            assert self._failure is not None
            raise self._failure

    def take_due(
        self, senders: Collection[str], subchannel: str, due: Callable[[Stamp | None, int], bool]
    ) -> Arrival | None:
        """Remove and return the first frame of these senders for which the function `due` returns True; else None.

        It does not wait for a frame.
        """
        with self._changed:
            queues = [self._queues[sender, subchannel] for sender in senders]
            ready = [queue for queue in queues if queue and due(queue[0].stamp, queue[0].nbytes)]
            if ready:
                return min(ready, key=lambda queue: queue[0].order).popleft()
            if self._failure is not None and not any(queues):
                raise self._failure
            return None


class InboxWire:
    """Transport within one process: it puts frames directly into the receivers' inboxes."""

    def __init__(self, me: str, inboxes: Mapping[str, Inbox]) -> None:
        self._me = me
        self._inboxes = inboxes

    def post(self, to: str, frame: bytes, stamp: Stamp | None) -> None:
        """Deliver a frame to the inbox of `to`. Raise TransportError if it is not a party of the run."""
        if to not in self._inboxes:
            raise TransportError(
                f"{self._me}: {to!r} is not a party of this run", "send to a party of the job", code="SVFL-PARTIES-NAME"
            )
        self._inboxes[to].deliver(frame, stamp, peer=self._me)
