"""Queues of received frames, sorted by sender and subchannel, and the interface of a transport."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple, Protocol

from securevfl.errors import FrameError, ProtocolError, TransportError
from securevfl.runtime.abort import Abort
from securevfl.runtime.clock import Stamp
from securevfl.runtime.codec import Frame, decode_frame, decode_message

MAX_FRAME_BYTES = 1 << 30  # bytes; a larger message is split by its protocol


class Wire(Protocol):
    """Carries frames. Must keep the order of frames between two parties."""

    def post(self, to: str, frame: bytes, stamp: Stamp | None) -> None:
        """Hands the frame over; may return before it has arrived. TransportError if the peer is away."""


class Arrival(NamedTuple):
    """A frame that waits to be taken; `number` counts all that have come to this party."""

    frame: Frame
    stamp: Stamp | None
    nbytes: int
    number: int

    @property
    def order(self) -> tuple[float, int]:
        """What came first: by virtual time where there is one, then as it came."""
        return (0.0 if self.stamp is None else self.stamp.start, self.number)


class Inbox:
    """Frames for one party, sorted by sender and subchannel. A wire delivers, the channel takes."""

    def __init__(self, me: str, peers: Iterable[str], session: bytes, *, max_frame: int = MAX_FRAME_BYTES) -> None:
        self.me = me
        self.session = session
        self._peers = frozenset(peers)
        self._max = max_frame
        self._queues: dict[tuple[str, str], deque[Arrival]] = defaultdict(deque)
        self._next: dict[tuple[str, str], int] = {}
        self._arrived = 0
        self._failure: BaseException | None = None
        self._changed = threading.Condition()

    def deliver(self, data: bytes | memoryview, stamp: Stamp | None = None, *, peer: str | None = None) -> None:
        """Take a frame in. Raises FrameError or ProtocolError if it is refused; nothing changes then.

        `peer` is who the transport knows to be at the other end; a frame that claims another sender is refused.
        """
        if len(data) > self._max:
            raise FrameError(f"{self.me}: a frame of at most {self._max} bytes was expected, {len(data)} came")
        frame = decode_frame(data)
        if frame.session != self.session:
            raise ProtocolError(f"{self.me}: a frame of another session came; start all parties with the same job")
        if frame.receiver != self.me or frame.sender not in self._peers or peer not in (None, frame.sender):
            raise ProtocolError(f"{self.me}: a frame came that is not addressed to this party by one of its peers")
        place = (frame.sender, frame.subchannel)
        with self._changed:
            expected = self._next.get(place, 0)  # a refused frame leaves no trace, not even of its subchannel's name
            if frame.seq != expected:
                raise FrameError(
                    f"{self.me}: frame {expected} of {frame.sender} was expected, {frame.seq} came: "
                    "replayed, lost or out of order"
                )
            self._next[place] = expected + 1
            if frame.kind == Abort.__name__:
                abort = decode_message(Abort, frame.payload)
                self._fail(abort.error(frame.sender, self._peers))
            else:
                self._queues[place].append(Arrival(frame, stamp, len(data), self._arrived))
                self._arrived += 1
                self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Wakes everyone who waits, with this error. The first failure stays."""
        with self._changed:
            self._fail(error)

    def reason(self, error: TransportError) -> TransportError:
        """Return what a message could not be sent for: what has ended the session before, or else this error."""
        with self._changed:
            return self._failure if isinstance(self._failure, TransportError) else error

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._changed.notify_all()

    def take(
        self, senders: Collection[str], subchannel: str, timeout: float, *, awaited: Collection[str] = ()
    ) -> Arrival:
        """Take the first frame of any of the senders on that subchannel, within `timeout` seconds; what had arrived
        before a
        failure is still handed out.

        awaited: no frame is taken before each of these senders has one here.
        """
        with self._changed:
            queues = [self._queues[sender, subchannel] for sender in senders]
            needed = [self._queues[sender, subchannel] for sender in awaited]
            if not self._changed.wait_for(lambda: (all(needed) and any(queues)) or self._failure is not None, timeout):
                names = " or ".join(sorted(senders))
                silent = min(senders) if len(senders) == 1 else ""
                raise TransportError(
                    f"{self.me}: nothing came from {names} within {timeout:g} s; is it running?", away=silent
                )
            if ready := [queue for queue in queues if queue]:
                return (ready[0] if len(ready) == 1 else min(ready, key=lambda queue: queue[0].order)).popleft()
            assert self._failure is not None
            raise self._failure

    def take_due(
        self, senders: Collection[str], subchannel: str, due: Callable[[Stamp | None, int], bool]
    ) -> Arrival | None:
        """Take the first frame of any of the senders on that subchannel that is `due`; None, without waiting, if there
        is
        none."""
        with self._changed:
            queues = [self._queues[sender, subchannel] for sender in senders]
            ready = [queue for queue in queues if queue and due(queue[0].stamp, queue[0].nbytes)]
            if ready:
                return min(ready, key=lambda queue: queue[0].order).popleft()
            if self._failure is not None and not any(queues):
                raise self._failure
            return None


class InboxWire:
    """Puts a frame straight into the receiver's inbox, in the same process."""

    def __init__(self, me: str, inboxes: Mapping[str, Inbox]) -> None:
        self._me = me
        self._inboxes = inboxes

    def post(self, to: str, frame: bytes, stamp: Stamp | None) -> None:
        if to not in self._inboxes:
            raise TransportError(f"{self._me}: a party of this run was expected as receiver, {to!r} is none")
        self._inboxes[to].deliver(frame, stamp, peer=self._me)
