"""Messages of a line between two neighbours, below the packets that the line carries."""

from __future__ import annotations

import msgspec

from securevfl.errors import FrameError
from securevfl.runtime.codec import Message

MAX_PIECE_BYTES = 1 << 20  # bytes of a packet in one message


class OpenStream(Message, frozen=True):
    """start: 16 random bytes of this run of the process; known: the neighbour's, or nothing yet."""

    start: bytes
    known: bytes
    expected: int


class PacketPiece(Message, frozen=True):
    """Packet `number` or, with `more`, a piece of it."""

    number: int
    more: bool
    expected: int
    piece: bytes


class Acknowledge(Message, frozen=True):
    """All packets below `expected` are here."""

    expected: int


class CloseLine(Message, frozen=True):
    """This end has sent its last packet and wants no more."""

    expected: int


class RefuseStream(Message, frozen=True):
    """The sender ends this stream; with `final` it will take no other.

    anew: because one of the two ends was started anew; a new pair of ends may well meet.
    """

    reason: str
    final: bool
    anew: bool = False


LineMessage = OpenStream | PacketPiece | Acknowledge | CloseLine | RefuseStream

_decoder = msgspec.msgpack.Decoder(LineMessage)


def decode_line(me: str, data: bytes) -> LineMessage:
    """Decode a message of the line that came to `me`. Raises FrameError if it is none."""
    try:
        message: LineMessage = _decoder.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise FrameError(f"{me}: a message of the line was expected; what came is malformed") from None
    return message
