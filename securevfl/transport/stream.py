"""One gRPC stream of a line: it opens, resends unconfirmed packets and accepts packets in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from securevfl.errors import FrameError, PeerLost, ProtocolError, SecureVFLError, TransportError
from securevfl.runtime import eventlog
from securevfl.runtime.codec import encode_message
from securevfl.transport.line_messages import (
    MAX_PIECE_BYTES,
    Acknowledge,
    CloseLine,
    OpenStream,
    PacketPiece,
    RefuseStream,
    decode_line,
)

if TYPE_CHECKING:
    from securevfl.transport.line import Line

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
            yield encode_message(OpenStream(line.start, line.peer_start, self._told))
        while (message := self._next()) is not None:
            yield message
        if self._refusal:
            anew = self._anew or isinstance(line.failure, PeerLost)
            yield encode_message(RefuseStream(self._refusal, line.failure is not None, anew))

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
                        return encode_message(CloseLine(self._tell()))
                    if self._said_bye and line.peer_done and not line.out and self._told == line.expected:
                        self.ended = True
                        break
                    due = self._due()
                    if due <= 0:
                        return encode_message(Acknowledge(self._tell()))
                line.changed.wait(due)
        return None

    def _piece(self) -> bytes:
        packet = self._line.out[self._cursor - self._line.first]
        piece = packet if len(packet) <= MAX_PIECE_BYTES else packet[self._offset : self._offset + MAX_PIECE_BYTES]
        more = self._offset + len(piece) < len(packet)
        message = PacketPiece(self._cursor, more, self._tell(), piece)
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
        if isinstance(message, OpenStream):
            self._open(message)
        elif isinstance(message, RefuseStream):
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
            if isinstance(message, PacketPiece):
                self._gather(message)
            with line.changed:
                self._confirmed(message.expected)
                if isinstance(message, CloseLine):
                    line.peer_done = True
                line.changed.notify_all()

    def _open(self, message: OpenStream) -> None:
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

    def _gather(self, message: PacketPiece) -> None:
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
