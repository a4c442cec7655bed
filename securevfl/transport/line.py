"""A line between two neighbours: packets arrive in order and once each, also across cut connections.

A line outlives the streams that carry it. On every new stream both ends first say who they are and which packet they
expect next (Open), then resend from there; what is sent is kept until the neighbour has confirmed it. A stream on which
anything unexpected arrives is refused with the reason and given up; the next one starts from the same place, so damage
heals and nothing refused is ever half taken. After `STRIKES` refusals without progress, or `patience` seconds without
a stream, the line fails. A neighbour that has started anew since is refused: its state is gone. The end that has lost
nothing fails then, with PeerLost; the new end, which has nothing to lose yet, stays and waits for a new other end.

    Open   which run of the process, which packet is expected next
    Data   one piece of a packet, its number, and what has been received so far
    Ack    the latter alone
    Bye    nothing more will come
    Refusal   the stream ends here, and why
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

import msgspec

from securevfl import eventlog
from securevfl.channel import MAX_FRAME
from securevfl.codec import Message, encode_message
from securevfl.errors import FrameError, PeerLost, ProtocolError, SecureVFLError, TransportError

PIECE = 1 << 20  # bytes of a packet in one gRPC message
KEPT = 1 << 26  # unconfirmed bytes at which a sender waits
HELD = 1 << 31  # unconfirmed bytes at which a line is given up; reached only where nobody can wait
STRIKES = 5
_OVERHEAD = 1 << 12  # what wraps a frame in a packet: names, seal
_LATECOMER = 2.0  # seconds that a line which never opened is kept for a last word
_PULSE = 5.0  # seconds after which a line that has nothing to say says so
_CONFIRM_AFTER = 0.02  # seconds that a confirmation waits for something to travel with
_CONFIRM_AT = 1 << 22  # unconfirmed bytes received at which it goes at once


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


_decoder = msgspec.msgpack.Decoder(Open | Data | Ack | Bye | Refusal)


class Line:
    """One end. `deliver` gets each packet once, from one thread at a time; `failed` is told when the line is lost."""

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
        self.cause = "it has not called"  # why there is no stream, for people
        self._deliver = deliver
        self._failed = failed
        self._start = start
        self._patience = patience
        self._max = max_packet
        self._peer_start = b""
        self._out: deque[bytes] = deque()  # unconfirmed, from number _first on
        self._first = 0
        self._kept = 0
        self._expected = 0
        self._turn: Turn | None = None
        self._latest: Turn | None = None  # perhaps not open yet
        self._down_since: float | None = None
        self._strikes = 0
        self._turned_away_since = 0.0
        self._closing = False
        self._peer_done = False
        self._failure: SecureVFLError | None = None
        self._changed = threading.Condition()
        self._inward = threading.Lock()  # held while a packet is delivered

    @property
    def opened(self) -> bool:
        """Whether the neighbour has ever been there."""
        return bool(self._peer_start)

    @property
    def over(self) -> bool:
        """Whether no further stream is needed: both have said goodbye, or the line has failed."""
        with self._changed:
            return self._failure is not None or (self._peer_done and self._closing)

    @property
    def finished(self) -> bool:
        """Whether nothing more can come."""
        with self._changed:
            return self._failure is not None or self._peer_done

    def room(self) -> None:
        """Waits while too much is unconfirmed. Not for a thread that delivers: two full lines could wait for ever."""
        with self._changed:
            self._changed.wait_for(lambda: self._kept < KEPT or self._failure is not None or self._peer_done)

    def send(self, packet: bytes) -> None:
        """Hands a packet over. TransportError if the neighbour is lost or through."""
        with self._changed:
            if self._failure is not None:
                raise self._failure
            if self._peer_done or self._closing:
                raise TransportError(f"{self.me}: {self.peer if self._peer_done else self.me} has finished already")
            self._out.append(packet)
            self._kept += len(packet)
            full = self._kept > HELD
            self._changed.notify_all()
        if full:
            self.fail(TransportError(f"{self.peer} takes too little in: {HELD >> 20} MiB wait for it; is it stalled?"))

    def begin(self, *, calling: bool) -> Turn:
        """A new stream. It takes over from an earlier one when it opens; the end that calls opens first."""
        with self._changed:
            if self._failure is not None:
                raise self._failure
            self._latest = Turn(self, calling)
            return self._latest

    def close(self, timeout: float) -> bool:
        """Says goodbye once all is confirmed and waits until the neighbour has, too; whether it has.

        A neighbour that has never been there gets a moment to come and hear what is left for it.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._failure is not None or self.opened, min(timeout, _LATECOMER)):
                return False
            self._changed.wait_for(
                lambda: self._failure is not None or (self._peer_done and self._turn is None), timeout
            )
            return self._peer_done

    def fail(self, error: SecureVFLError) -> None:
        """Gives the line up; the first error stays."""
        with self._changed:
            if self._failure is not None or (self._peer_done and self._closing):
                return
            self._failure = error
            if self._turn is not None:
                self._turn.ended = True
            self._changed.notify_all()
        self._failed(error)

    def abandon(self, error: SecureVFLError) -> None:
        """Gives the line up unheard, and its stream with it."""
        with self._changed:
            self._failure = self._failure or error
            turns = [turn for turn in (self._turn, self._latest) if turn is not None]
            for turn in turns:
                turn.ended = True
            self._changed.notify_all()
        for turn in turns:
            turn.hang_up()

    def watch(self) -> None:
        """Fails the line if the neighbour has been away for too long. To be called every now and then.

        A stream on which nothing has been heard for half of `patience` is hung up, which leaves the other half for
        another try.
        """
        with self._changed:
            now, turn = time.monotonic(), self._turn
            silent = turn is not None and now - turn.heard > self._patience / 2
            if turn is not None and silent:
                self._down_since = turn.heard
            since = self._down_since
            late = since is not None and not self._peer_done and now - since > self._patience
        if turn is not None and silent:
            eventlog.warn(self.me, "silent", {"peer": self.peer, "seconds": now - turn.heard})
            turn.end("it is connected but silent")
            turn.hang_up()
        if late:
            self.fail(PeerLost(f"{self.peer} is away, {self._patience:g} s without a connection: {self.cause}"))

    def turned_away(self, error: SecureVFLError) -> None:
        """The neighbour has another process of this party, perhaps one whose end it has not seen yet."""
        now = time.monotonic()
        with self._changed:
            self._turned_away_since = self._turned_away_since or now
            late = now - self._turned_away_since > self._patience
        if late:
            self.fail(error)

    def strike(self, error: SecureVFLError) -> None:
        """Something was refused, by this end or the other; too often in a row loses the line."""
        with self._changed:
            self._strikes += 1
            out = self._strikes >= STRIKES
        eventlog.warn(self.me, "refused", {"peer": self.peer, "reason": str(error)})
        if out:
            self.fail(error)


class Turn:
    """One stream's time on a line: `outgoing` is what to write to it, `read` takes what comes from it."""

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
        with line._changed:
            line._changed.wait_for(lambda: self._calling or self._opened or self.ended)
        if not self.ended:
            with line._inward:  # an earlier stream may still be delivering
                self._told = line._expected
            yield encode_message(Open(line._start, line._peer_start, self._told))
        while (message := self._next()) is not None:
            yield message
        if self._refusal:
            anew = self._anew or isinstance(line._failure, PeerLost)
            yield encode_message(Refusal(self._refusal, line._failure is not None, anew))

    def _next(self) -> bytes | None:
        line = self._line
        with line._changed:
            while not self.ended:
                due = None
                if self._opened:
                    if self._cursor < line._first + len(line._out):
                        return self._piece()
                    if line._closing and not self._said_bye:
                        self._said_bye = True
                        return encode_message(Bye(self._tell()))
                    if self._said_bye and line._peer_done and not line._out and self._told == line._expected:
                        self.ended = True
                        break
                    due = self._due()
                    if due <= 0:
                        return encode_message(Ack(self._tell()))
                line._changed.wait(due)
        return None

    def _piece(self) -> bytes:
        packet = self._line._out[self._cursor - self._line._first]
        piece = packet if len(packet) <= PIECE else packet[self._offset : self._offset + PIECE]
        more = self._offset + len(piece) < len(packet)
        message = Data(self._cursor, more, self._tell(), piece)
        self._cursor, self._offset = (self._cursor, self._offset + len(piece)) if more else (self._cursor + 1, 0)
        return encode_message(message)

    def _tell(self) -> int:
        self._told, self._owed, self._spoke = self._line._expected, 0, time.monotonic()
        return self._told

    def _due(self) -> float:
        """Seconds until a confirmation must go: what is owed, or a sign of life."""
        now, pulse = time.monotonic(), min(self._line._patience / 8, _PULSE)
        if self._told == self._line._expected:
            return self._spoke + pulse - now
        if self._line._closing or self._owed >= _CONFIRM_AT:
            return 0.0
        return self._owed_since + _CONFIRM_AFTER - now

    def read(self, messages: Iterable[bytes]) -> None:
        """Takes what the stream brings until it ends or brings something that is refused."""
        line = self._line
        for data in messages:
            self.heard = time.monotonic()
            if self.ended:
                return
            try:
                self._take(data)
            except SecureVFLError as error:
                with line._changed:
                    if self.ended:
                        return
                    self._refusal = str(error)
                if not self._anew:
                    line.strike(error)
                with line._changed:
                    self.ended = True
                    line._changed.notify_all()
                return
            except Exception as error:
                line.fail(ProtocolError(f"{line.me} cannot take what {line.peer} sent: {type(error).__name__}"))
                raise

    def end(self, cause: str) -> bool:
        """The stream is gone; whether that was news."""
        line = self._line
        with line._changed:
            self.ended = True
            line._changed.notify_all()
            if line._turn not in (None, self):
                return False
            line._turn = None
            line.cause = self.cause = self.cause or cause
            if line.opened and line._down_since is None:
                line._down_since = time.monotonic()
            return self._opened and not line._peer_done

    def _take(self, data: bytes) -> None:
        line = self._line
        try:
            message = _decoder.decode(data)
        except (msgspec.DecodeError, ValueError, RecursionError):
            raise FrameError(f"{line.me}: a message of the line was expected; what came is malformed") from None
        if isinstance(message, Open):
            self._open(message)
        elif isinstance(message, Refusal):
            with line._changed:
                self.ended = True
                line._changed.notify_all()
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
            with line._changed:
                self._confirmed(message.expected)
                if isinstance(message, Bye):
                    line._peer_done = True
                line._changed.notify_all()

    def _open(self, message: Open) -> None:
        line = self._line
        if self._opened or len(message.start) != 16:
            raise FrameError(f"{line.me}: one opening was expected, another came")
        with line._changed:
            renewed = line._peer_start not in (b"", message.start)
            if renewed and line._turn is not None:
                self._anew = True
                raise TransportError(f"{line.me}: another process of {line.peer} is connected; stop one of the two")
        if renewed or message.known not in (b"", line._start):
            who = line.peer if renewed else line.me
            error = PeerLost(f"{who} was started anew while the other ran; start the job anew everywhere")
            self._anew = True
            if line.opened:
                line.fail(error)
            raise error
        with line._changed:
            if line._failure is not None:
                self.ended = True
                line._changed.notify_all()
                return
            last = line._first + len(line._out)
            if not line._first <= message.expected <= last:
                raise FrameError(f"{line.me}: packets {line._first} to {last} exist, {message.expected} was asked for")
            if line._turn is not None:
                line._turn.ended = True
            line._turn = self
            line._peer_start = message.start
            self._opened, self._cursor = True, message.expected
            self._confirmed(message.expected)
            line._down_since = None
            line._changed.notify_all()
        eventlog.emit(line.me, "connected", {"peer": line.peer, "resumes_at": line._expected})

    def _gather(self, message: Data) -> None:
        line = self._line
        if message.number != line._expected:
            raise FrameError(
                f"{line.me}: packet {line._expected} of {line.peer} was expected, {message.number} came: "
                "replayed, lost or out of order"
            )
        self._size += len(message.piece)
        if self._size > line._max or (message.more and not message.piece):
            raise FrameError(f"{line.me}: packets of at most {line._max} bytes were expected, a larger one came")
        self._pieces.append(message.piece)
        if message.more:
            return
        packet = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        with line._inward:
            if self.ended:
                return
            line._deliver(packet)
            with line._changed:
                line._expected += 1
                line._strikes = 0
                if not self._owed:
                    self._owed_since = time.monotonic()
                self._owed += len(packet)
        self._pieces, self._size = [], 0

    def _confirmed(self, expected: int) -> None:
        line = self._line
        if not line._first <= expected <= self._cursor:
            raise FrameError(f"{line.me}: {line.peer} confirmed packet {expected}, sent were {self._cursor}")
        while line._first < expected:
            line._kept -= len(line._out.popleft())
            line._first += 1
            line._strikes = 0
