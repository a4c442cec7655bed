"""Messages of a line, the connection of two neighbours (parties that connect directly), which carries their packets.

A line uses one stream (gRPC call) at a time, and a new one after each interruption (`securevfl.transport.line`).

OpenStream     first message of a stream: an id of the sender's process, and the next packet that it expects
PacketPiece    one piece of a packet, with its number and an acknowledgement
Acknowledge    an acknowledgement alone
CloseLine      the sender has sent its last packet
RefuseStream   the sender ends the stream for a reason
"""

from __future__ import annotations

import msgspec

from securevfl.errors import FrameError
from securevfl.runtime.codec import Message, check_texts

MAX_PIECE_BYTES = 1 << 20  # maximum number of bytes of a packet in one message


class OpenStream(Message, frozen=True):
    """The first message of each stream, in both directions.

    Attributes:
        start: 16 random bytes that identify the sender's process.
        known: the receiver's `start`, if the sender has received it on an earlier stream; empty on the first one.
        expected: number of the next packet that the sender expects.
    """

    start: bytes
    known: bytes
    expected: int


class PacketPiece(Message, frozen=True):
    """A piece of a packet; a small packet is one piece.

    Attributes:
        number: number of the packet.
        more: whether further pieces of the packet follow.
        expected: number of the next packet that the sender expects.
        piece: the bytes of the piece.
    """

    number: int
    more: bool
    expected: int
    piece: bytes


class Acknowledge(Message, frozen=True):
    """The sender of this message has received all packets with numbers below `expected`."""

    expected: int


class CloseLine(Message, frozen=True):
    """The sender has sent its last packet. It has received all packets with numbers below `expected`."""

    expected: int


class RefuseStream(Message, frozen=True):
    """The sender ends this stream.

    Attributes:
        reason: text for the neighbour's operator.
        final: whether the sender also refuses all later streams of this line.
        restarted: whether the reason is that one of the two processes was restarted, so that a new line may succeed.
    """

    reason: str
    final: bool
    restarted: bool = False


LineMessage = OpenStream | PacketPiece | Acknowledge | CloseLine | RefuseStream
_decoder = msgspec.msgpack.Decoder(LineMessage)


def decode_line(me: str, data: bytes) -> LineMessage:
    """Decode a message of a line that party `me` received, or raise FrameError."""
    try:
        message: LineMessage = _decoder.decode(data)
        check_texts(message)
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise FrameError(f"party {me} received a malformed message", code="SVFL-FRAME", party=me) from None
    return message
