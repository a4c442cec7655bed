"""A line between two neighbours: packets arrive in order and once each, also across cut connections.

A line outlives the streams that carry it (`transport.line`). On every new stream both ends first say who they are and
which packet they expect next, then resend from there; what is sent is kept until the neighbour has confirmed it. A
stream on which anything unexpected arrives is refused with the reason and given up; the next one starts from the same
place, so damage heals and nothing refused is ever half taken. After `STRIKES` refusals without progress, or `patience`
seconds without a stream, the line fails. A neighbour that has started anew since is refused: its state is gone. The end
that has lost nothing fails then, with PeerLost; the new end, which has nothing to lose yet, stays and waits for a new
other end.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

import msgspec

from securevfl.errors import FrameError, PeerLost, ProtocolError, SecureVFLError, TransportError
from securevfl.runtime import eventlog
from securevfl.runtime.channel import MAX_FRAME
from securevfl.runtime.codec import Message, encode_message

STRIKES = 5
_OVERHEAD = 1 << 12  # what wraps a frame in a packet: names, seal


# What two neighbours say to each other on a line, below whatever the line carries.
#
# Open      which run of the process, which packet is expected next
# Data      one piece of a packet, its number, and what has been received so far
# Ack       the latter alone
# Bye       nothing more will come
# Refusal   the stream ends here, and why


PIECE = 1 << 20  # bytes of a packet in one message


class Open(Message, frozen=True):
    """start: 16 random bytes of this run of the process; known: the neighbour's, or nothing yet."""

    start: bytes
    known: bytes
    expected: int


class Data(Message, frozen=True):
    """Packet `number` or, with `more`, a piece of it."""

    number: int
    more: bool
    expected: int
    piece: bytes


class Ack(Message, frozen=True):
    """All packets below `expected` are here."""

    expected: int


class Bye(Message, frozen=True):
    """This end has sent its last packet and wants no more."""

    expected: int


class Refusal(Message, frozen=True):
    """The sender ends this stream; with `final` it will take no other.

    anew: because one of the two ends was started anew; a new pair of ends may well meet.
    """

    reason: str
    final: bool
    anew: bool = False


LineMessage = Open | Data | Ack | Bye | Refusal
_decoder = msgspec.msgpack.Decoder(LineMessage)


def decode_line(me: str, data: bytes) -> LineMessage:
    """Decode a message of the line that came to `me`. Raises FrameError if it is none."""
    try:
        message: LineMessage = _decoder.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise FrameError(f"{me}: a message of the line was expected; what came is malformed") from None
    return message


# One stream of a line: opens it, sends what is unconfirmed from where the neighbour is, takes what comes in order.
#
# The two ends of a stream do not trust it to be the first, nor the last, nor whole: each message is held against what
# the line knows (`transport.line`), and the first that does not fit ends the stream with the reason.


_PULSE = 5.0  # seconds after which a line that has nothing to say says so
_CONFIRM_AFTER = 0.02  # seconds that a confirmation waits for something to travel with
_CONFIRM_AT = 1 << 22  # unconfirmed bytes received at which it goes at once


class Stream:
    """`outgoing` is what to write to the stream, `read` takes what comes from it."""

    def __init__(self, line: Line, calling: bool) -> None:
        self.ended = False  # guarded, as all here, by the line's condition
        self.heard = time.monotonic()
        self.hang_up: Callable[[], object] = lambda: None  # ends the stream at once
        self.cause = ""  # why it ended
        self._spoke = self.heard
        self._line = line
        self._calling = calling
        self._opened = False
        self._cursor = 0  # number of the next packet to send
        self._offset = 0  # what has been sent of it
        self._told = 0
        self._owed_since = 0.0
        self._owed = 0
        self._said_bye = False
        self._refusal = ""
        self._anew = False  # refused for an end that was started anew
        self._pieces: list[bytes] = []
        self._size = 0

    def outgoing(self) -> Iterator[bytes]:
        """Messages for the stream, until it is over."""
        line = self._line
        with line.changed:
            line.changed.wait_for(lambda: self._calling or self._opened or self.ended)
        if not self.ended:
            with line.inward:  # an earlier stream may still be delivering
                self._told = line.expected
            yield encode_message(Open(line.start, line.peer_start, self._told))
        while (message := self._next()) is not None:
            yield message
        if self._refusal:
            anew = self._anew or isinstance(line.failure, PeerLost)
            yield encode_message(Refusal(self._refusal, line.failure is not None, anew))

    def _next(self) -> bytes | None:
        line = self._line
        with line.changed:
            while not self.ended:
                due = None
                if self._opened:
                    if self._cursor < line.first + len(line.out):
                        return self._piece()
                    if line.closing and not self._said_bye:
                        self._said_bye = True
                        return encode_message(Bye(self._tell()))
                    if self._said_bye and line.peer_done and not line.out and self._told == line.expected:
                        self.ended = True
                        break
                    due = self._due()
                    if due <= 0:
                        return encode_message(Ack(self._tell()))
                line.changed.wait(due)
        return None

    def _piece(self) -> bytes:
        packet = self._line.out[self._cursor - self._line.first]
        piece = packet if len(packet) <= PIECE else packet[self._offset : self._offset + PIECE]
        more = self._offset + len(piece) < len(packet)
        message = Data(self._cursor, more, self._tell(), piece)
        self._cursor, self._offset = (self._cursor, self._offset + len(piece)) if more else (self._cursor + 1, 0)
        return encode_message(message)

    def _tell(self) -> int:
        self._told, self._owed, self._spoke = self._line.expected, 0, time.monotonic()
        return self._told

    def _due(self) -> float:
        """Seconds until a confirmation must go: what is owed, or a sign of life."""
        now, pulse = time.monotonic(), min(self._line.patience / 8, _PULSE)
        if self._told == self._line.expected:
            return self._spoke + pulse - now
        if self._line.closing or self._owed >= _CONFIRM_AT:
            return 0.0
        return self._owed_since + _CONFIRM_AFTER - now

    def read(self, messages: Iterable[bytes]) -> None:
        """Read what the stream brings until it ends or brings something that is refused."""
        line = self._line
        for data in messages:
            self.heard = time.monotonic()
            if self.ended:
                return
            try:
                self._take(data)
            except SecureVFLError as error:
                with line.changed:
                    if self.ended:
                        return
                    self._refusal = str(error)
                if not self._anew:
                    line.strike(error)
                with line.changed:
                    self.ended = True
                    line.changed.notify_all()
                return
            except Exception as error:
                line.fail(ProtocolError(f"{line.me} cannot take what {line.peer} sent: {type(error).__name__}"))
                raise

    def end(self, cause: str) -> bool:
        """End the stream, and say whether its loss was news."""
        line = self._line
        with line.changed:
            self.ended = True
            line.changed.notify_all()
            if line.stream not in (None, self):
                return False
            line.stream = None
            line.cause = self.cause = self.cause or cause
            if line.opened and line.down_since is None:
                line.down_since = time.monotonic()
            return self._opened and not line.peer_done

    def _take(self, data: bytes) -> None:
        line = self._line
        message = decode_line(line.me, data)
        if isinstance(message, Open):
            self._open(message)
        elif isinstance(message, Refusal):
            with line.changed:
                self.ended = True
                line.changed.notify_all()
            error = TransportError(f"{line.peer} refused {line.me}: {message.reason[:500]}")
            if message.anew:
                self.cause = str(error)
                if line.opened:
                    line.fail(PeerLost(str(error)))
                elif not message.final:
                    line.turned_away(error)
            elif message.final:
                line.fail(error)
            else:
                line.strike(error)
        elif not self._opened:
            raise FrameError(f"{line.me}: an opening was expected first, {type(message).__name__} came")
        else:
            if isinstance(message, Data):
                self._gather(message)
            with line.changed:
                self._confirmed(message.expected)
                if isinstance(message, Bye):
                    line.peer_done = True
                line.changed.notify_all()

    def _open(self, message: Open) -> None:
        line = self._line
        if self._opened or len(message.start) != 16:
            raise FrameError(f"{line.me}: one opening was expected, another came")
        with line.changed:
            renewed = line.peer_start not in (b"", message.start)
            if renewed and line.stream is not None:
                self._anew = True
                raise TransportError(f"{line.me}: another process of {line.peer} is connected; stop one of the two")
        if renewed or message.known not in (b"", line.start):
            who = line.peer if renewed else line.me
            error = PeerLost(f"{who} was started anew while the other ran")
            self._anew = True
            if line.opened:
                line.fail(error)
            raise error
        with line.changed:
            if line.failure is not None:
                self.ended = True
                line.changed.notify_all()
                return
            last = line.first + len(line.out)
            if not line.first <= message.expected <= last:
                raise FrameError(f"{line.me}: packets {line.first} to {last} exist, {message.expected} was asked for")
            if line.stream is not None:
                line.stream.ended = True
            line.stream = self
            line.peer_start = message.start
            self._opened, self._cursor = True, message.expected
            self._confirmed(message.expected)
            line.down_since = None
            line.changed.notify_all()
        eventlog.emit(line.me, "connected", {"peer": line.peer, "resumes_at": line.expected})

    def _gather(self, message: Data) -> None:
        line = self._line
        if message.number != line.expected:
            raise FrameError(
                f"{line.me}: packet {line.expected} of {line.peer} was expected, {message.number} came: "
                "replayed, lost or out of order"
            )
        self._size += len(message.piece)
        if self._size > line.max_packet or (message.more and not message.piece):
            raise FrameError(f"{line.me}: packets of at most {line.max_packet} bytes were expected, a larger one came")
        self._pieces.append(message.piece)
        if message.more:
            return
        packet = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        with line.inward:
            if self.ended:
                return
            line.deliver(packet)
            with line.changed:
                line.expected += 1
                line.progressed()
                if not self._owed:
                    self._owed_since = time.monotonic()
                self._owed += len(packet)
        self._pieces, self._size = [], 0

    def _confirmed(self, expected: int) -> None:
        line = self._line
        if not line.first <= expected <= self._cursor:
            raise FrameError(f"{line.me}: {line.peer} confirmed packet {expected}, sent were {self._cursor}")
        while line.first < expected:
            line.kept -= len(line.out.popleft())
            line.first += 1
            line.progressed()


KEPT = 1 << 26  # unconfirmed bytes at which a sender waits
HELD = 1 << 31  # unconfirmed bytes at which a line is given up; reached only where nobody can wait
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
