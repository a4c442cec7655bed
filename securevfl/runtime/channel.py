"""A party's typed line to the others: send a message to a peer, receive a message of an expected type from a peer.

    send: message, with leave if it tells something (gate) -> frame (codec) -> clock and counters -> wire
    recv: inbox -> frame checked (session, receiver, order) -> clock and counters -> message of the expected type

A *subchannel* separates conversations of the same two parties, so that several threads of a party can share one
channel;
each subchannel is in order on its own. `recv_any` serves several parties on one subchannel, whoever comes first. A
`Wire` only
carries bytes: threads in one process, gRPC between organisations.
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
    """One party's end. Safe to use from several threads as long as each subchannel has one sender and one receiver.

    timeout: seconds on the wall that a message is waited for. keys: fingerprints of all parties' certificate keys by
    name; empty where parties have none, within one process.
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
        self._sent: dict[tuple[str, str], int] = defaultdict(int)

    @property
    def session(self) -> bytes:
        """16 public bytes that every party of this run shares and no other run has."""
        return self._inbox.session

    @property
    def observed(self) -> bool:
        """Whether anyone reads what is noted."""
        return isinstance(self._observe, Observer)

    def note(self, fact: object) -> None:
        """Tells an observer in this process; nothing is sent, and without one nothing happens."""
        if isinstance(self._observe, Observer):
            self._observe.note(self.me, fact)

    def permit(self, entry: DisclosureRecord) -> DisclosurePermit:
        """Enter what is to be told, which lets it be sent. LeakageError if it must not."""
        return self.gate.permit(entry)

    def send(self, to: str, message: Message, subchannel: str = "", *, permit: DisclosurePermit | None = None) -> None:
        """Send a message. TransportError if the peer is away, with the reason that it gave if it has stopped.

        told: the entry that it is sent under. ProtocolError if it tells something, and there is none.
        """
        self.gate.check(message, permit)
        seq = self._sent[to, subchannel]
        frame = encode_frame(message, session=self.session, sender=self.me, receiver=to, subchannel=subchannel, seq=seq)
        if len(frame) > MAX_FRAME_BYTES:
            raise ProtocolError(f"{self.me}: a {type(message).__name__} of {len(frame)} bytes is too large to send")
        self._sent[to, subchannel] = seq + 1
        self.clock.tick(Kind.LOCAL)
        self.counters.add_message(self.clock.stage, type(message).__name__, len(frame))
        if self._observe is not None:
            self._observe(Event("send", self.me, to, subchannel, message, len(frame)))
        try:
            self._wire.post(to, frame, self.clock.departs(len(frame)))
        except TransportError as error:
            raise self._inbox.reason(error) from None

    def recv(self, sender: str, kind: type[M], subchannel: str = "", *, timeout: float | None = None) -> M:
        """Receive the next message of `sender`. Raises ProtocolError if it is not a `kind`; TransportError if none
        comes in time.

        `timeout` is in seconds on the wall; the channel's own if None.
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
        """Receive the next message of whichever of `senders` is first, with its sender; it is of one kind or of
        several. Otherwise as `recv`.

        Of those that are here the one that left first in virtual time is taken, or where there is none, came first.
        """
        self.clock.tick(Kind.LOCAL)
        return self._decode_arrival(
            self._inbox.take(senders, subchannel, self.timeout if timeout is None else timeout), kind
        )

    def recv_first(
        self, senders: Collection[str], kind: type[M], subchannel: str = "", *, awaited: Collection[str]
    ) -> tuple[str, M]:
        """Receive a message as `recv_any` does, in the order in which separate computers would have it.

        In a simulation parties that are slow by their clocks may be fast on the wall: there it takes none before each
        of `awaited` has sent, who are those of `senders` that will whatever happens.
        """
        self.clock.tick(Kind.LOCAL)
        needed = awaited if self.clock.virtual else ()
        return self._decode_arrival(self._inbox.take(senders, subchannel, self.timeout, awaited=needed), kind)

    def recv_due(self, senders: Collection[str], kind: type[M], subchannel: str = "") -> tuple[str, M] | None:
        """Receive the first message of any of `senders` that has arrived by now, by this party's clock; None if there
        is none.

        It never waits.
        """
        self.clock.tick(Kind.LOCAL)
        arrival = self._inbox.take_due(senders, subchannel, self.clock.due)
        return None if arrival is None else self._decode_arrival(arrival, kind)

    def _decode_arrival(self, arrival: Arrival, kind: type[M] | tuple[type[M], ...]) -> tuple[str, M]:
        """Return the sender and the message of what has arrived. ProtocolError unless it is of one of these kinds."""
        self.clock.arrives(arrival.stamp, arrival.nbytes)
        frame = arrival.frame
        kinds = {each.__name__: each for each in (kind if isinstance(kind, tuple) else (kind,))}
        if frame.kind not in kinds:
            names = " or ".join(kinds)
            raise ProtocolError(
                f"{self.me}: {frame.sender} was expected to send {names}, {frame.kind[:64]} came; "
                "do both run the same job and version?"
            )
        message = decode_message(kinds[frame.kind], frame.payload)
        if self._observe is not None:
            self._observe(Event("recv", self.me, frame.sender, frame.subchannel, message, arrival.nbytes))
        return frame.sender, message

    def fail(self, error: BaseException) -> None:
        """End every wait of this party's threads with this error; where several errors come, the first one stays."""
        self._inbox.fail(error)

    def abort(self, peers: Iterable[str], error: BaseException, *, resumes: bool = False) -> None:
        """Tells the peers by its code, and this party's other threads, that it stops for this error. Peers that are
        away are passed over."""
        peers = list(peers)
        abort = Abort.of(error, peers, resumes=resumes)
        self.fail(TransportError(f"{self.me} has stopped: {error}"))
        for peer in peers:
            try:
                self.send(peer, abort, permit=self.permit(DisclosureRecord(peer, "verdicts", 1, 8)))
            except TransportError:
                continue
