"""A packet's tag states its content; a party refuses packets from peers that must not send them."""

from typing import Any

import pytest
from msgspec import structs

from securevfl.errors import STOP_REASONS, FrameError, PeerLost, TransportError
from securevfl.runtime.abort import Abort
from securevfl.runtime.codec import FRAME_FORMAT, encode_frame, encode_message
from securevfl.transport.packets import (
    MAX_HANDSHAKE_BYTES,
    EncryptedPacket,
    SessionOffer,
    SessionProof,
    decode_inner_packet,
    decode_packet,
)
from securevfl.transport.secure_transport import SecureTransport
from securevfl.transport.tls import Credentials
from tests.builders import raises_code

SESSION = bytes(16)
GREETING = SessionOffer(FRAME_FORMAT, bytes(32), "{}", False)
FRAME = encode_frame(Abort("failed"), session=SESSION, sender="shop", receiver="bank")


def test_each_packet_says_what_it_is() -> None:
    for message in (GREETING, SessionProof(SESSION, b"", b""), Abort("failed"), EncryptedPacket("shop", "telco", b"")):
        assert decode_packet("bank", "shop", encode_message(message)) == message
    assert type(decode_packet("bank", "shop", FRAME)).__name__ == "Frame"


@pytest.mark.parametrize(
    "packet",
    [
        b"\xc1",
        b"",
        encode_message(GREETING)[:-1],
        FRAME.replace(b"Frame", b"frame"),
        encode_message(Abort("failed", party="x" * MAX_HANDSHAKE_BYTES)),
    ],
)
def test_what_is_none_of_them_is_refused(packet: bytes) -> None:
    with raises_code(FrameError, "SVFL-FRAME"):
        decode_packet("bank", "shop", packet)


@pytest.mark.parametrize("kind", ["nonce", "handshake", "certificate", "signature"])
def test_every_part_of_a_handshake_is_bounded(kind: str) -> None:
    """A packet that is not a frame may have at most `MAX_HANDSHAKE_BYTES`, whichever of its fields is long."""

    def packet(size: int) -> bytes:
        long = {kind: "x" * size if kind == "handshake" else bytes(size)}
        if kind in ("nonce", "handshake"):
            return encode_message(SessionOffer(**{**structs.asdict(GREETING), **long}))
        return encode_message(SessionProof(**{**structs.asdict(SessionProof(SESSION, b"", b"")), **long}))

    longest = 2 * MAX_HANDSHAKE_BYTES - len(packet(MAX_HANDSHAKE_BYTES))
    assert len(packet(longest)) == MAX_HANDSHAKE_BYTES
    decode_packet("bank", "shop", packet(longest))
    with raises_code(FrameError, "SVFL-FRAME"):
        decode_packet("bank", "shop", packet(longest + 1))


def test_there_are_no_parcels_in_parcels() -> None:
    with raises_code(FrameError, "SVFL-FRAME"):
        decode_inner_packet("bank", "shop", encode_message(EncryptedPacket("shop", "bank", b"")))


def post_of(meeting: Any, party: str) -> SecureTransport:
    return SecureTransport(Credentials(meeting.kit(party), party), meeting.peers, {})


def test_letters_come_in_their_order(meet: Any) -> None:
    post = post_of(meet(2), "bank")
    with raises_code(FrameError, "SVFL-FRAME"):
        post.deliver("shop", FRAME)
    for letter in (GREETING, SessionProof(SESSION, b"", b"")):
        post.deliver("shop", encode_message(letter))
    with raises_code(FrameError, "SVFL-FRAME"):
        post.deliver("shop", encode_message(GREETING))
    with raises_code(FrameError, "SVFL-FRAME"):
        post.deliver("shop", FRAME)  # no session yet
    assert post.failure is None
    post.deliver("shop", encode_message(Abort("diverged")))
    assert isinstance(post.failure, TransportError)
    assert str(post.failure) == f"shop has stopped: {STOP_REASONS['diverged']}"


def test_a_relay_passes_parcels_on_and_tells_who_is_lost(meet: Any) -> None:
    post = post_of(meet(2, "relay"), "bank")
    for packet in (FRAME, *(encode_message(letter) for letter in (GREETING, Abort("away", party="nobody")))):
        with raises_code(FrameError, "SVFL-FRAME"):
            post.deliver("relay", packet)
    for sender, receiver in (("relay", "bank"), ("bank", "bank"), ("shop", "shop"), ("telco", "bank")):
        with raises_code(FrameError, "SVFL-FRAME"):
            post.deliver("relay", encode_message(EncryptedPacket(sender, receiver, b"")))
    assert post.failure is None
    post.deliver("relay", encode_message(Abort("away", party="shop")))
    assert isinstance(post.failure, PeerLost)
    assert post.failure.code == "SVFL-PEER-LOST"
    assert post.failure.problem == "the hub has lost shop"
    post = post_of(meet(2, "relay"), "bank")
    post.deliver("relay", encode_message(Abort("stopped")))
    assert (
        str(post.failure)
        == "relay, the hub, has stopped: its operator has stopped it; run the same command again at every party"
    )


def test_a_neighbour_sends_letters_and_no_parcels(meet: Any) -> None:
    post = post_of(meet(2), "bank")
    with raises_code(FrameError, "SVFL-FRAME"):
        post.deliver("shop", encode_message(EncryptedPacket("shop", "bank", encode_message(GREETING))))
