"""What a packet of a line may hold: a letter to the neighbour, or a parcel for somebody behind it.

    Greeting   a random nonce, the terms in full                   before the session
    Agreed     the session as computed, signed                     before the session
    Frame      one message of the session (`securevfl.runtime.codec`)
    Abort      the sender has stopped, by a code                   at any time
    Parcel     a sealed letter of another party, for the hub to pass on or from it (`transport.seal`)

Each says what it is in its tag. Between neighbours letters go as they are: who sent them is who the line leads to. Only
what passes through a hub has an envelope of its own.
"""

from __future__ import annotations

import msgspec

from securevfl.errors import FrameError
from securevfl.runtime.channel import Abort
from securevfl.runtime.codec import Frame, Message

MAX_GREETING = 1 << 20  # bytes of a letter that is no frame


class Greeting(Message, frozen=True):
    """nonce: 32 bytes; terms: JSON of the job and the roles; through: whether the sender has its outcome already."""

    format: int
    nonce: bytes
    terms: str
    through: bool


class Agreed(Message, frozen=True):
    """The session as the sender has computed it. certificate: DER; signature: of session and names by its key."""

    session: bytes
    certificate: bytes
    signature: bytes


class Parcel(Message, frozen=True):
    """What crosses a line to or from a hub for two parties that have none: the hub reads the names."""

    sender: str
    receiver: str
    body: bytes


Letter = Greeting | Agreed | Abort | Frame
_packets = msgspec.msgpack.Decoder(Letter | Parcel)


def read_packet(me: str, neighbour: str, packet: bytes) -> Letter | Parcel:
    """Decode the packet that a neighbour has sent. Raises FrameError if it is neither a letter nor a parcel."""
    try:
        found: Letter | Parcel = _packets.decode(packet)
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise FrameError(f"{me}: a letter of {neighbour} was expected; what came is malformed") from None
    if not isinstance(found, Frame | Parcel) and len(packet) > MAX_GREETING:
        raise FrameError(f"{me}: a greeting of at most {MAX_GREETING} bytes was expected, more came")
    return found


def read_letter(me: str, sender: str, plain: bytes) -> Letter:
    """Decode the letter that was in a sealed parcel. Raises FrameError if it is no letter."""
    found = read_packet(me, sender, plain)
    if isinstance(found, Parcel):
        raise FrameError(f"{me}: a letter of {sender} was expected, a parcel in a parcel came")
    return found
