"""The packets that a line carries."""

from __future__ import annotations

import msgspec

from securevfl.errors import FrameError
from securevfl.runtime.abort import Abort
from securevfl.runtime.codec import Frame, Message

MAX_HANDSHAKE_BYTES = 1 << 20  # bytes of a letter that is no frame


class SessionOffer(Message, frozen=True):
    """nonce: 32 bytes; terms: JSON of the job and the roles; through: whether the sender has its outcome already."""

    format: int
    nonce: bytes
    terms: str
    through: bool


class SessionProof(Message, frozen=True):
    """The session as the sender has computed it. certificate: DER; signature: of session and names by its key."""

    session: bytes
    certificate: bytes
    signature: bytes


class EncryptedPacket(Message, frozen=True):
    """What crosses a line to or from a hub for two parties that have none: the hub reads the names."""

    sender: str
    receiver: str
    body: bytes


Packet = SessionOffer | SessionProof | Abort | Frame

_packets = msgspec.msgpack.Decoder(Packet | EncryptedPacket)


def decode_packet(me: str, neighbour: str, packet: bytes) -> Packet | EncryptedPacket:
    """Decode the packet that a neighbour has sent. Raises FrameError if it is neither a letter nor a parcel."""
    try:
        found: Packet | EncryptedPacket = _packets.decode(packet)
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise FrameError(f"{me}: a letter of {neighbour} was expected; what came is malformed") from None
    if not isinstance(found, Frame | EncryptedPacket) and len(packet) > MAX_HANDSHAKE_BYTES:
        raise FrameError(f"{me}: a greeting of at most {MAX_HANDSHAKE_BYTES} bytes was expected, more came")
    return found


def decode_inner_packet(me: str, sender: str, plain: bytes) -> Packet:
    """Decode the letter that was in a sealed parcel. Raises FrameError if it is no letter."""
    found = decode_packet(me, sender, plain)
    if isinstance(found, EncryptedPacket):
        raise FrameError(f"{me}: a letter of {sender} was expected, a parcel in a parcel came")
    return found
