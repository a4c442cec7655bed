"""A party's typed connection to its peers: send a message, receive a message of an expected type.

    send: message with its permit (disclosure_gate) -> frame, its encoding (codec) -> clock and counters -> transport
    recv: inbox -> frame checked (session, receiver, order) -> clock and counters -> message of the expected type

A *subchannel* is an ordered stream of messages between two parties. Several threads of one party share a channel by
using different subchannels. `recv_any` receives from several parties on one subchannel, in the order of arrival. A
`Wire` (`securevfl.runtime.inbox`) only transports bytes: between threads of one process, or between organisations over
gRPC.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType

from securevfl.errors import ProtocolError, TransportError
from securevfl.runtime.abort import Abort
from securevfl.runtime.clock import Clock
from securevfl.runtime.codec import M, Message, decode_message, encode_frame
from securevfl.runtime.costs import CostCounters, Kind
from securevfl.runtime.disclosure_gate import DisclosureGate, DisclosurePermit, DisclosureRecord
from securevfl.runtime.inbox import MAX_FRAME_BYTES, Arrival, Inbox, Wire
from securevfl.runtime.observer import Event, Observer


class Channel:
    """One party's end of the connections to its peers.

    Threads may share a channel if each subchannel has one sending and one receiving thread.

    Args:
        wire: transports frames to the peers.
        inbox: queues of received frames.
        clock: measures this party's time.
        counters: count this party's messages and bytes.
        timeout: seconds to wait for a message.
        observe: called with every message of this party; an `Observer` also receives its notes (facts for observers).
        keys: fingerprints of all parties' certificate keys by name; empty if all parties run in one process.
    """

    def __init__(
        self,
        wire: Wire,
        inbox: Inbox,
        clock: Clock,
        counters: CostCounters,
        *,
        timeout: float = 600.0,
        observe: Callable[[Event], None] | None = None,
        keys: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.me = inbox.me
        self.keys = keys
        self.clock = clock
        self.counters = counters
        self.timeout = timeout
        self.gate = DisclosureGate(self.me, self.note)
        self._wire = wire
        self._inbox = inbox
        self._observe = observe
        self._next_seq: dict[tuple[str, str], int] = defaultdict(int)

    @property
    def session(self) -> bytes:
        """The 16 public bytes that identify this run; they are the same at all parties."""
        return self._inbox.session

    @property
    def observed(self) -> bool:
        """Whether an observer receives the notes of this party."""
        return isinstance(self._observe, Observer)

    def note(self, fact: object) -> None:
        """Pass a fact about the run to the observer in this process, if there is one; nothing is sent to peers."""
        if isinstance(self._observe, Observer):
            self._observe.note(self.me, fact)

    def permit(self, record: DisclosureRecord) -> DisclosurePermit:
        """Record a disclosure and return the permit to send it; see `DisclosureGate.permit`."""
        return self.gate.permit(record)

    def send(self, to: str, message: Message, subchannel: str = "", *, permit: DisclosurePermit | None = None) -> None:
        """Send a message to a peer.

        Args:
            to: name of the peer.
            message: the message to send.
            subchannel: the subchannel that the peer receives from.
            permit: required if the message is a `DisclosingMessage`.

        Raises:
            ProtocolError: if the permit is missing or does not cover the message, or the message is too large.
            TransportError: if the peer is disconnected or has stopped; its reason is included if it has sent one.
        """
        self.gate.check(message, permit)
        seq = self._next_seq[to, subchannel]
        frame = encode_frame(message, session=self.session, sender=self.me, receiver=to, subchannel=subchannel, seq=seq)
        if len(frame) > MAX_FRAME_BYTES:
            raise ProtocolError(
                f"{self.me}: a {type(message).__name__} has {len(frame):,} bytes, the limit is {MAX_FRAME_BYTES:,}",
                "use fewer rows or columns",
                code="SVFL-JOB-TOO-LARGE",
            )
        self._next_seq[to, subchannel] = seq + 1
        self.clock.tick(Kind.LOCAL)
        self.counters.add_message(self.clock.stage, type(message).__name__, len(frame))
        if self._observe is not None:
            self._observe(Event("send", self.me, to, subchannel, message, len(frame)))
        try:
            self._wire.post(to, frame, self.clock.departs(len(frame)))
        except TransportError as error:
            raise self._inbox.reason(error) from None

    def recv(self, sender: str, kind: type[M], subchannel: str = "", *, timeout: float | None = None) -> M:
        """Receive the next message of a peer.

        Args:
            sender: name of the peer.
            kind: expected class of the message.
            subchannel: the subchannel that the peer sends to.
            timeout: seconds to wait; None for the channel's timeout.

        Returns:
            The message.

        Raises:
            ProtocolError: if the message is of another class.
            TransportError: if no message arrives in time.
        """
        return self.recv_any((sender,), kind, subchannel, timeout=timeout)[1]

    def recv_any(
        self,
        senders: Collection[str],
        kind: type[M] | tuple[type[M], ...],
        subchannel: str = "",
        *,
        timeout: float | None = None,
    ) -> tuple[str, M]:
        """Receive the next message of any of several peers, as `recv` does.

        In a simulation, it returns the arrived message with the earliest simulated time of departure; without a
        virtual clock, the one that arrived first.

        Args:
            senders: names of the peers.
            kind: expected class or classes of the message.
            subchannel: the subchannel that the peers send to.
            timeout: seconds to wait; None for the channel's timeout.

        Returns:
            The sender and the message.
        """
        self.clock.tick(Kind.LOCAL)
        seconds = self.timeout if timeout is None else timeout
        return self._decode_arrival(self._inbox.take(senders, subchannel, seconds), kind)

    def recv_first(
        self, senders: Collection[str], kind: type[M], subchannel: str = "", *, awaited: Collection[str]
    ) -> tuple[str, M]:
        """Receive a message as `recv_any` does, in the order in which separate computers would receive it.

        In a simulation a party that is slow by its virtual clock may be fast on this computer. With a virtual clock
        this method therefore waits until every party in `awaited` has sent a message.

        Args:
            senders: names of the peers.
            kind: expected class of the message.
            subchannel: the subchannel that the peers send to.
            awaited: the senders that are certain to send a message.

        Returns:
            The sender and the message.
        """
        self.clock.tick(Kind.LOCAL)
        needed = awaited if self.clock.virtual else ()
        return self._decode_arrival(self._inbox.take(senders, subchannel, self.timeout, awaited=needed), kind)

    def recv_due(self, senders: Collection[str], kind: type[M], subchannel: str = "") -> tuple[str, M] | None:
        """Return the first message that has arrived by this party's clock, or None; never wait."""
        self.clock.tick(Kind.LOCAL)
        arrival = self._inbox.take_due(senders, subchannel, self.clock.due)
        return None if arrival is None else self._decode_arrival(arrival, kind)

    def _decode_arrival(self, arrival: Arrival, kind: type[M] | tuple[type[M], ...]) -> tuple[str, M]:
        """Decode a received frame: return sender and message, or raise ProtocolError if its class is not expected."""
        self.clock.arrives(arrival.stamp, arrival.nbytes)
        frame = arrival.frame
        kinds = {k.__name__: k for k in (kind if isinstance(kind, tuple) else (kind,))}
        if frame.kind not in kinds:
            raise ProtocolError(
                f"{self.me}: received a {frame.kind[:64]} of {frame.sender}, expected a {' or a '.join(kinds)}",
                code="SVFL-PROTOCOL-MESSAGE",
            )
        message = decode_message(kinds[frame.kind], frame.payload)
        if self._observe is not None:
            self._observe(Event("recv", self.me, frame.sender, frame.subchannel, message, arrival.nbytes))
        return frame.sender, message

    def fail(self, error: BaseException) -> None:
        """Raise `error` in all threads of this party that wait for a message; the first of several errors counts."""
        self._inbox.fail(error)

    def abort(self, peers: Iterable[str], error: BaseException, *, resumes: bool = False) -> None:
        """Stop this party's other threads, and send the peers the reason (`Abort`).

        Args:
            peers: names of the peers; those that are disconnected are skipped.
            error: the error that ends the run.
            resumes: whether the run can continue from a checkpoint.
        """
        peers = list(peers)
        abort = Abort.of(error, peers, resumes=resumes)
        self.fail(TransportError(f"{self.me} has stopped: {error}", code="SVFL-PEER-STOPPED"))
        for peer in peers:
            try:
                self.send(peer, abort, permit=self.permit(DisclosureRecord(peer, "verdicts", 1, 8)))
            except TransportError:
                continue
