"""One gRPC stream of a line: it opens, resends unconfirmed packets and accepts packets in order.

A line (`transport.line`) is the connection of two neighbours, which are parties or hubs that connect directly. It uses
a new stream after each interruption. Neither end assumes that a stream is the first, the last or complete. Each message
is compared with the state of the line, and the first message that does not fit ends the stream with the reason.
"""

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

_KEEPALIVE = 5.0  # seconds without a message after which an acknowledgement shows that this end is alive
_CONFIRM_AFTER = 0.02  # seconds to wait for a packet that can carry an acknowledgement, before it is sent alone
_CONFIRM_AT = 1 << 22  # number of received bytes after which an acknowledgement is sent without waiting


class Stream:
    """One stream of a line. `outgoing` yields the messages to send, `read` handles the messages that arrive.

    Args:
        line: the line that the stream carries. Its condition guards all attributes.
        calling: whether this end has called the other one, and so sends OpenStream first.
    """

    def __init__(self, line: Line, calling: bool) -> None:
        self.ended = False
        self.last_received = time.monotonic()
        self.hang_up: Callable[[], object] = lambda: None  # a function that ends the stream at once
        self.cause = ""  # why the stream ended; empty while it is open
        self._last_sent = self.last_received
        self._line = line
        self._calling = calling
        self._opened = False
        self._cursor = 0  # number of the next packet to send
        self._offset = 0  # number of bytes of that packet that have been sent
        self._confirmed = 0  # number of packets that this end has confirmed
        self._unconfirmed_since = 0.0
        self._unconfirmed_bytes = 0
        self._close_sent = False
        self._refusal = ""
        self._restarted = False  # whether the stream was refused because one end was restarted
        self._pieces: list[bytes] = []
        self._size = 0

    def set_hang_up(self, hang_up: Callable[[], object]) -> None:
        """Set the function that ends the stream at once, and call it if the stream has ended already."""
        with self._line.changed:
            self.hang_up, ended = hang_up, self.ended
        if ended:
            hang_up()

    def outgoing(self) -> Iterator[bytes]:
        """Yield the messages to send, until the stream ends."""
        line = self._line
        with line.changed:
            line.changed.wait_for(lambda: self._calling or self._opened or self.ended)
        if not self.ended:
            with line.inward:  # wait until an earlier stream has finished delivering a packet
                self._confirmed = line.expected
            yield encode_message(OpenStream(line.start, line.peer_start, self._confirmed))
        while (message := self._next()) is not None:
            yield message
        if self._refusal:
            restarted = self._restarted or isinstance(line.failure, PeerLost)
            yield encode_message(RefuseStream(self._refusal, line.failure is not None, restarted))

    def _next(self) -> bytes | None:
        line = self._line
        with line.changed:
            while not self.ended:
                due = None
                if self._opened:
                    if self._cursor < line.first + len(line.out):
                        return self._piece()
                    if line.closing and not self._close_sent:
                        self._close_sent = True
                        return encode_message(CloseLine(self._confirm()))
                    if self._close_sent and line.peer_done and not line.out and self._confirmed == line.expected:
                        self.ended = True
                        break
                    due = self._due()
                    if due <= 0:
                        return encode_message(Acknowledge(self._confirm()))
                line.changed.wait(due)
        return None

    def _piece(self) -> bytes:
        packet = self._line.out[self._cursor - self._line.first]
        piece = packet if len(packet) <= MAX_PIECE_BYTES else packet[self._offset : self._offset + MAX_PIECE_BYTES]
        more = self._offset + len(piece) < len(packet)
        message = PacketPiece(self._cursor, more, self._confirm(), piece)
        self._cursor, self._offset = (self._cursor, self._offset + len(piece)) if more else (self._cursor + 1, 0)
        return encode_message(message)

    def _confirm(self) -> int:
        self._confirmed, self._unconfirmed_bytes, self._last_sent = self._line.expected, 0, time.monotonic()
        return self._confirmed

    def _due(self) -> float:
        """Return the seconds until the next acknowledgement is due, if only as a sign of life."""
        now, keepalive = time.monotonic(), min(self._line.patience / 8, _KEEPALIVE)
        if self._confirmed == self._line.expected:
            return self._last_sent + keepalive - now
        if self._line.closing or self._unconfirmed_bytes >= _CONFIRM_AT:
            return 0.0
        return self._unconfirmed_since + _CONFIRM_AFTER - now

    def read(self, messages: Iterable[bytes]) -> None:
        """Handle the messages of the stream until it ends or one of them is refused."""
        line = self._line
        for data in messages:
            self.last_received = time.monotonic()
            if self.ended:
                return
            try:
                self._handle(data)
            except SecureVFLError as error:
                with line.changed:
                    if self.ended:
                        return
                    self._refusal = str(error)
                if not self._restarted:
                    line.count_refusal(error)
                with line.changed:
                    self.ended = True
                    line.changed.notify_all()
                return
            except Exception as error:
                line.fail(
                    ProtocolError(
                        f"party {line.me} failed on a message of {line.peer} ({type(error).__name__})",
                        code="SVFL-INTERNAL",
                        party=line.me,
                        peer=line.peer,
                    )
                )
                raise

    def end(self, cause: str) -> bool:
        """End the stream.

        Args:
            cause: the reason; it is ignored if a reason is already known.

        Returns:
            Whether the line is still in use, so that the end of the stream is an interruption.
        """
        line = self._line
        with line.changed:
            self.ended = True
            line.streams.discard(self)
            line.changed.notify_all()
            if line.stream not in (None, self):
                return False
            line.stream = None
            line.cause = self.cause = self.cause or cause
            if line.opened and line.down_since is None:
                line.down_since = time.monotonic()
            return self._opened and not line.peer_done

    def _handle(self, data: bytes) -> None:
        line = self._line
        message = decode_line(line.me, data)
        if isinstance(message, OpenStream):
            self._open(message)
        elif isinstance(message, RefuseStream):
            self._handle_refusal(message)
        elif not self._opened:
            raise self._frame_error(f"{line.peer} sent {type(message).__name__} before OpenStream")
        else:
            if isinstance(message, PacketPiece):
                self._gather(message)
            with line.changed:
                self._handle_confirmation(message.expected)
                if isinstance(message, CloseLine):
                    line.peer_done = True
                line.changed.notify_all()

    def _handle_refusal(self, message: RefuseStream) -> None:
        line = self._line
        with line.changed:
            self.ended = True
            line.changed.notify_all()
        problem = f"{line.peer} refused the connection of {line.me}: {message.reason[:500].rstrip('.')}"
        error = TransportError(problem, "", code="SVFL-PEER-REFUSED", peer=line.peer)  # the reason has its own remedy
        if message.restarted:
            self.cause = str(error)
            if line.opened:
                line.fail(PeerLost(problem, "", code="SVFL-PEER-LOST", peer=line.peer))
            elif not message.final:
                line.note_other_process(error)
        elif message.final:
            line.fail(error)
        else:
            line.count_refusal(error)

    def _open(self, message: OpenStream) -> None:
        line = self._line
        if self._opened or len(message.start) != 16:
            raise self._frame_error(f"{line.peer} sent a second or an invalid OpenStream")
        with line.changed:
            renewed = line.peer_start not in (b"", message.start)
            if renewed and line.stream is not None:
                self._restarted = True
                raise TransportError(
                    f"another process of {line.peer} is connected to {line.me}",
                    "stop one of the two",
                    code="SVFL-PEER-REFUSED",
                    peer=line.peer,
                )
        if renewed or message.known not in (b"", line.start):
            party = line.peer if renewed else line.me
            error = PeerLost(f"{party} was restarted while the other party was running", code="SVFL-PEER-LOST")
            self._restarted = True
            if line.opened:
                line.fail(error)
            raise error
        with line.changed:
            if line.failure is not None:
                self.ended = True
                line.changed.notify_all()
                return
            end = line.first + len(line.out)
            if not line.first <= message.expected <= end:
                raise self._frame_error(
                    f"{line.peer} expects packet {message.expected}, but {line.me} has packets {line.first} to {end}"
                )
            if line.stream is not None:
                line.stream.ended = True
            line.stream = self
            line.peer_start = message.start
            self._opened, self._cursor = True, message.expected
            self._handle_confirmation(message.expected)
            line.down_since = None
            line.changed.notify_all()
        eventlog.emit(line.me, "connected", {"peer": line.peer, "next_packet": line.expected})

    def _gather(self, message: PacketPiece) -> None:
        line = self._line
        if message.number != line.expected:
            raise self._frame_error(
                f"{line.peer} sent packet {message.number} instead of packet {line.expected}: it was replayed, lost or "
                "reordered"
            )
        self._size += len(message.piece)
        if self._size > line.max_packet or (message.more and not message.piece):
            raise self._frame_error(
                f"{line.peer} sent a packet of more than {line.max_packet} bytes, or an empty piece"
            )
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
                line.note_progress()
                if not self._unconfirmed_bytes:
                    self._unconfirmed_since = time.monotonic()
                self._unconfirmed_bytes += len(packet)
        self._pieces, self._size = [], 0

    def _handle_confirmation(self, expected: int) -> None:
        line = self._line
        if not line.first <= expected <= self._cursor:
            raise self._frame_error(f"{line.peer} confirmed packet {expected}, but {self._cursor} packets were sent")
        while line.first < expected:
            line.unconfirmed_bytes -= len(line.out.popleft())
            line.first += 1
            line.note_progress()

    def _frame_error(self, problem: str) -> FrameError:
        return FrameError(problem, code="SVFL-FRAME", party=self._line.me, peer=self._line.peer)
