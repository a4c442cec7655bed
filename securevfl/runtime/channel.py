"""A party's typed line to the others: send a message to a peer, receive a message of an expected type from a peer.

    send: message, with leave if it tells something (gate) -> frame (codec) -> clock and books -> wire
    recv: inbox -> frame checked (session, receiver, order) -> clock and books -> message of the expected type

A *subchannel* separates conversations of the same two parties, so that several threads of a party can share one
channel;
each subchannel is in order on its own. `recv_any` serves several parties on one subchannel, whoever comes first. A
`Wire` only
carries bytes: threads in one process, gRPC between organisations.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np

from securevfl.crypto.share_ring import ShareRing
from securevfl.errors import FrameError, PeerStopped, ProtocolError, StopReason, TransportError, stop_reason_of
from securevfl.runtime.clock import Books, Clock, Kind, Stamp
from securevfl.runtime.codec import Frame, M, Message, decode_frame, decode_message, encode_frame

# A party's gate: whatever another party may read of its data leaves under an entry that says what it tells.
#
#     told = channel.permit(DisclosureRecord("bank", "columns", H.size, 64, about=("shop",)))
#     channel.send("bank", Part(H), subchannel, permit=permit)
#
# A message that reveals more than random bits and ciphertexts is a `DisclosingMessage` one, and no channel sends it
# without what
# `permit` has handed out. So an entry is made before the first byte leaves: the party's account takes it, which may
# refuse (`securevfl.consent.booking` writes it to disk), then whoever observes the party in this process is given it,
# and only then the message goes. It has no more bits than its entry: a receiver may have chosen what each row is
# multiplied by, so a number tells as much as it has bits. What is blinded, sealed or marked is longer than its numbers,
# and has as many octets as its layout says. A number that leaves in several messages, or goes round by others as sums
# do, needs one entry; the party that gives the number makes it.


Subject = Literal[
    "labels", "columns", "scores", "codes", "ids", "phases", "losses", "keys", "sizes", "verdicts", "digests"
]
NUMBERS: frozenset[Subject] = frozenset({"labels", "columns", "scores", "phases", "losses"})
Group = Literal["training", "held out", "new", "bins", "weights", "correlations", "verdicts"]


@dataclass(frozen=True)
class DisclosureRecord:
    """What leaves at one time: `numbers` of `bits` each about the data of the parties `about`, which `to` may read.

    labels    numbers that follow from labels: residuals, and products of residuals with columns
    columns   numbers that follow from columns: forward outputs, and their sums
    scores    numbers f of rows that were asked about
    codes     which columns weigh most in rows that were asked about, under names of their owner's
    ids       whether ids are in a table
    phases    phases of random features of columns
    losses    sums of losses, and counts of rows beside them
    keys      keys that open what somebody else gives
    sizes, verdicts, digests   numbers of rows and versions; how a training goes; keyed digests of rows

    group: the rows they are about, where the party knows; bins, weights and correlations are about all, and verdicts
    about those that are evaluated, by labels that a peer which deviates has the metric hang on. visit:
    the visit to a batch that this party was at, from 1; 0 before the first. octets: of its message at most, by a public
    layout, where numbers are blinded or sealed, or have checks or marks beside them; 0 where they go as they are.
    """

    to: str
    kind: Subject
    numbers: int
    bits: int
    about: tuple[str, ...] = ()
    group: Group = "training"
    visit: int = 0
    octets: int = 0


class DisclosurePermit:
    """Permit to send the values that a record describes. Only the gate that issued it accepts it."""

    __slots__ = ("gate", "record")

    def __init__(self, gate: DisclosureGate, record: DisclosureRecord) -> None:
        self.gate = gate
        self.record = record


class DisclosingMessage(Message, frozen=True):
    """A message that reveals, to anyone it may go to, more than random bits and ciphertexts: see `Declared`.

    beside: how many bits it has at most beside numbers that follow from data, such as marks and keyed digests.
    """

    beside: ClassVar[int] = 0

    @property
    def bits(self) -> int:
        """The bits of its arrays and octets."""
        return sum(8 * _octets(getattr(self, name)) for name in self.__struct_fields__)


def _octets(value: Any) -> int:
    return value.nbytes if isinstance(value, np.ndarray) else len(value) if isinstance(value, bytes) else 0


DisclosureRecorder = Callable[[DisclosureRecord, int], None]


class DisclosureGate:
    """The one place where all that a party tells others leaves. Safe to use from several threads.

    visit: to a batch, the last that this party has begun, from 1. totals: numbers told so far by kind, receiver, whose
    data and rows.
    """

    def __init__(self, me: str, note: Callable[[DisclosureRecord], None] = lambda entry: None) -> None:
        """note: is given every entry once it is made."""
        self.me = me
        self.visit = 0
        self.totals: dict[tuple[Subject, str, tuple[str, ...], Group], int] = {}
        self._note = note
        self._account: DisclosureRecorder | None = None
        self._where = threading.local()
        self._one = threading.Lock()

    def keep(self, account: DisclosureRecorder | None) -> None:
        """Has every entry from now on taken by an account first, with the number told so far of its like; by none any
        more if None.
        """
        with self._one:
            self._account = account

    def began(self, visit: int) -> None:
        """Note that this party goes on to a visit to a batch, numbered from 1."""
        self.visit = max(self.visit, visit)

    @contextmanager
    def on(self, group: Group) -> Iterator[None]:
        """Mark what this thread tells inside the block as about these rows, unless its entry names others."""
        before = self.group
        self._where.group = group
        try:
            yield
        finally:
            self._where.group = before

    @property
    def group(self) -> Group:
        """The rows that this thread tells about."""
        return getattr(self._where, "group", "training")

    def permit(self, entry: DisclosureRecord) -> DisclosurePermit:
        """Enters it, and lets it be sent. What the account raises goes through: nothing may be sent then."""
        group = self.group if entry.group == "training" else entry.group
        entry = replace(entry, group=group, visit=self.visit)
        key = (entry.kind, entry.to, entry.about, group)
        with self._one:
            total = self.totals.get(key, 0) + entry.numbers
            if self._account is not None:
                self._account(entry, total)
            self.totals[key] = total
        self._note(entry)
        return DisclosurePermit(self, entry)

    def check(self, message: Message, permit: DisclosurePermit | None) -> None:
        """ProtocolError if the message tells something, and nothing was entered for it at this gate."""
        if permit is not None and permit.gate is not self:
            raise ProtocolError(f"{self.me}: an entry of this party's own gate was expected, {permit.gate.me}'s came")
        if permit is None and isinstance(message, DisclosingMessage):
            raise ProtocolError(
                f"{self.me}: a {type(message).__name__} tells something and was to be sent without an entry; say what "
                "it tells: channel.send(..., permit=channel.permit(DisclosureRecord(...)))"
            )
        if permit is None or not isinstance(message, DisclosingMessage) or permit.record.kind not in NUMBERS:
            return
        entry = permit.record
        octets = entry.octets or ShareRing(min(64, entry.bits)).size(entry.numbers)
        if message.bits > message.beside + 8 * octets:
            raise ProtocolError(
                f"{self.me}: a {type(message).__name__} was to be sent of more bits than its entry has, which is "
                f"{entry.numbers:,} numbers of {entry.bits} bits; enter what it tells"
            )


MAX_FRAME = 1 << 30  # bytes; a larger message is split by its protocol


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


class Abort(DisclosingMessage, frozen=True):
    """The sender has stopped. Its reason is one of a closed set (`STOP_REASONS`) and no text of the error.

    resumes: whether its state is kept, and the same command goes on from there. party: which party is away from it, or
    under another code, whose code it passes on: so that all read the same reason, whichever word of it comes first.
    """

    reason: StopReason
    resumes: bool = False
    party: str = ""

    @classmethod
    def of(cls, error: BaseException, parties: Collection[str], *, resumes: bool = False) -> Abort:
        """Reduce an error to what others read: a code, and the name of one of these parties if that began it."""
        if isinstance(error, PeerStopped) and error.party in parties:
            return cls(error.stopped, False, error.party)
        away = error.away if isinstance(error, TransportError) else ""
        reason = stop_reason_of(error)  # a party that refuses once refuses again
        return cls(reason, resumes and reason != "refused", away if away in parties else "")

    def error(self, sender: str, peers: Collection[str]) -> PeerStopped:
        """Return the error with which a party ends that reads this of a sender; `peers`: whom it could be about."""
        if self.reason != "away" and self.party in peers:
            return PeerStopped(self.party, self.reason)
        who = f" ({self.party})" if self.party in peers else ""
        return PeerStopped(sender, self.reason, who + ("; it can go on from its last state" if self.resumes else ""))


@dataclass(frozen=True)
class Event:
    """One message as a party saw it; for transcripts."""

    direction: Literal["send", "recv"]
    me: str
    peer: str
    subchannel: str
    message: Message
    nbytes: int


class Observer(ABC):
    """Sees in this process what parties do: their messages at both ends, and what they note beside."""

    @abstractmethod
    def __call__(self, event: Event) -> None:
        """See one message that was sent, or that has come."""

    @abstractmethod
    def note(self, me: str, fact: object) -> None:
        """See one fact that this party has noted (`securevfl.protocols.notes`)."""


class Inbox:
    """Frames for one party, sorted by sender and subchannel. A wire delivers, the channel takes."""

    def __init__(self, me: str, peers: Iterable[str], session: bytes, *, max_frame: int = MAX_FRAME) -> None:
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
        books: Books,
        *,
        timeout: float = 600.0,
        observe: Callable[[Event], None] | None = None,
        keys: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.me = inbox.me
        self.keys = keys
        self.clock = clock
        self.books = books
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
        if len(frame) > MAX_FRAME:
            raise ProtocolError(f"{self.me}: a {type(message).__name__} of {len(frame)} bytes is too large to send")
        self._sent[to, subchannel] = seq + 1
        self.clock.tick(Kind.LOCAL)
        self.books.sent(self.clock.stage, type(message).__name__, len(frame))
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
