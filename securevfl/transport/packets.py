"""The packets that a line carries: for the neighbour at its other end, or encrypted for a party behind the hub.

A line is the direct connection of two parties, over TLS. A hub forwards packets between parties without a line. A
session is one run's exchange of messages. It begins when all parties agree on the *handshake*: the job, the roles and
other values that must be equal at all parties.

    SessionOffer      a random nonce and the handshake                                  before the session
    SessionProof      the session id as the sender computed it, signed                  before the session
    Frame             one message of the session (`securevfl.runtime.codec`)
    Abort             the sender has stopped, with one of a few reasons                 at any time
    EncryptedPacket   a packet of another party, which the hub forwards (`transport.end_to_end`)

Each packet states its type. Between neighbours, TLS encrypts packets and identifies the sender. A packet that passes
through a hub is also encrypted end to end, and wrapped in an EncryptedPacket that names its sender and receiver.
"""

from __future__ import annotations

import msgspec

from securevfl.errors import FrameError
from securevfl.runtime.abort import Abort
from securevfl.runtime.codec import Frame, Message, check_texts

MAX_HANDSHAKE_BYTES = 1 << 20  # maximum size of a packet that is not a frame, in bytes


class SessionOffer(Message, frozen=True):
    """First packet of a party.

    Attributes:
        format: version of the message format.
        nonce: 32 random bytes.
        handshake: the values on which all parties must agree, as JSON.
        done: whether the sender has its result already, for example after a lost connection, and takes part only so
            that the others can finish.
    """

    format: int
    nonce: bytes
    handshake: str
    done: bool


class SessionProof(Message, frozen=True):
    """Second packet of a party.

    Attributes:
        session: the session id as the sender computed it.
        certificate: the sender's certificate, in DER.
        signature: signature of the session id and both parties' names.
    """

    session: bytes
    certificate: bytes
    signature: bytes


class EncryptedPacket(Message, frozen=True):
    """An encrypted packet between two parties without a line. The hub can read the names and the size."""

    sender: str
    receiver: str
    body: bytes


Packet = SessionOffer | SessionProof | Abort | Frame
_packets = msgspec.msgpack.Decoder(Packet | EncryptedPacket)


def decode_packet(me: str, neighbour: str, packet: bytes) -> Packet | EncryptedPacket:
    """Decode a packet.

    Args:
        me: name of this party.
        neighbour: name of the sender.
        packet: the encoded packet.

    Returns:
        The packet.

    Raises:
        FrameError: the packet is malformed or too large.
    """
    try:
        decoded: Packet | EncryptedPacket = _packets.decode(packet)
        if not isinstance(decoded, SessionOffer):  # the texts of an offer are bounded when its JSON is parsed
            check_texts(decoded)
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise FrameError(
            f"party {me} received a malformed packet from {neighbour}", code="SVFL-FRAME", party=me, peer=neighbour
        ) from None
    if not isinstance(decoded, Frame | EncryptedPacket) and len(packet) > MAX_HANDSHAKE_BYTES:
        raise FrameError(
            f"{neighbour} sent a handshake packet of more than {MAX_HANDSHAKE_BYTES} bytes to {me}",
            code="SVFL-FRAME",
            party=me,
            peer=neighbour,
        )
    return decoded


def decode_inner_packet(me: str, sender: str, plain: bytes) -> Packet:
    """Decode the content of an encrypted packet.

    Args:
        me: name of this party.
        sender: name of the sender.
        plain: the decrypted bytes.

    Returns:
        The packet.

    Raises:
        FrameError: the packet is malformed, too large or an encrypted packet itself.
    """
    packet = decode_packet(me, sender, plain)
    if isinstance(packet, EncryptedPacket):
        raise FrameError(
            f"{sender} sent an encrypted packet inside an encrypted packet to {me}",
            code="SVFL-FRAME",
            party=me,
            peer=sender,
        )
    return packet
