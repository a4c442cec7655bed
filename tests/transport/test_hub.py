"""A hub, which forwards packets, sees only routing and sizes, and cannot change a packet unnoticed."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from securevfl.errors import CryptoError, FrameError, TransportError
from securevfl.runtime.codec import decode_message, encode_message
from securevfl.transport import certs, end_to_end, secure_transport
from securevfl.transport.end_to_end import EndToEndSession, KeyOffer
from securevfl.transport.packets import EncryptedPacket
from securevfl.transport.relay import route
from securevfl.transport.tls import Credentials
from tests.builders import raises_code
from tests.transport.processes import together


class Conversation:
    """The encryption of two parties; forwarded packets wait in a list, as at a hub."""

    def __init__(self, meeting: Any) -> None:
        self.credentials = {name: Credentials(meeting.kit(name), name) for name in ("bank", "shop")}
        self.to_shop: list[bytes] = []
        self.to_bank: list[bytes] = []
        self.bank = EndToEndSession(self.credentials["bank"], "shop", self.to_shop.append)
        self.shop = EndToEndSession(self.credentials["shop"], "bank", self.to_bank.append)

    def begin(self) -> None:
        self.bank.start()
        self.shop.start()
        assert self.bank.receive(self.to_bank.pop(0)) is None
        assert self.shop.receive(self.to_shop.pop(0)) is None
        assert self.bank.receive(self.to_bank.pop(0)) is None
        assert self.shop.receive(self.to_shop.pop(0)) is None
        assert self.bank.wait(0)
        assert self.shop.wait(0)


@pytest.fixture
def talk(meet: Any) -> Conversation:
    return Conversation(meet(2))


def test_sealed_both_ways_and_never_twice_alike(talk: Conversation) -> None:
    talk.begin()
    for _ in range(3):
        talk.bank.send(b"the same message")
        talk.shop.send(b"the same message")
    assert len({*talk.to_shop, *talk.to_bank}) == 6
    for body in talk.to_shop:
        assert b"same" not in body
        assert talk.shop.receive(body) == b"the same message"
        talk.shop.accept()


def test_nothing_altered_replayed_dropped_or_sent_back_opens(talk: Conversation) -> None:
    talk.begin()
    for text in (b"one", b"two"):
        talk.bank.send(text)
    one, two = talk.to_shop
    altered = bytes([one[0] ^ 1]) + one[1:]
    for bad in (altered, two, b"", one[:-1]):
        with raises_code(FrameError, "SVFL-FRAME"):
            talk.shop.receive(bad)
    with pytest.raises(FrameError):
        talk.bank.receive(one)
    assert talk.shop.receive(one) == b"one"
    talk.shop.accept()
    with pytest.raises(FrameError):
        talk.shop.receive(one)
    assert talk.shop.receive(two) == b"two"


def test_a_hub_cannot_put_its_own_key_in(talk: Conversation, meet: Any) -> None:
    """The hub offers its key with the bank's certificate: it cannot prove possession."""
    talk.bank.start()
    forged = decode_message(KeyOffer, talk.to_shop.pop(0))
    middle = EndToEndSession(talk.credentials["shop"], "shop", talk.to_shop.append)  # any key that is not the bank's
    talk.shop.start()
    middle._credentials = _Impostor(talk.credentials["shop"], "bank", forged.certificate)
    middle._offer = KeyOffer(middle._offer.public, forged.certificate)
    talk.shop.receive(encode_message(middle._offer))
    middle.receive(talk.to_bank.pop(0))
    with raises_code(CryptoError, "SVFL-CRYPTO-KEY"):
        talk.shop.receive(talk.to_shop.pop(0))
    assert not talk.shop.wait(0)


class _Impostor:
    """An impostor that signs with another key than that of its certificate."""

    def __init__(self, credentials: Credentials, party: str, certificate: bytes) -> None:
        self.ca, self.party, self.certificate, self.identity = credentials.ca, party, certificate, credentials.identity


class _Misstating(EndToEndSession):
    """A session that signs a claim in which one part is another's."""

    def __init__(self, part: int, other: Any, *of_session: Any) -> None:
        super().__init__(*of_session)
        self._part, self._other = part, other

    def _claim(self, *parts: Any) -> bytes:  # type: ignore[override]
        return EndToEndSession._claim(*parts[: self._part], self._other, *parts[self._part + 1 :])


@pytest.mark.parametrize("part", range(4))
def test_a_proof_of_identity_covers_both_names_and_both_offers(talk: Conversation, part: int) -> None:
    other = "telco" if part < 2 else KeyOffer(bytes(32), talk.credentials["bank"].certificate)
    bank = _Misstating(part, other, talk.credentials["bank"], "shop", talk.to_shop.append)
    bank.start()
    talk.shop.start()
    bank.receive(talk.to_bank.pop(0))
    assert talk.shop.receive(talk.to_shop.pop(0)) is None
    with raises_code(CryptoError, "SVFL-CRYPTO-KEY"):
        talk.shop.receive(talk.to_shop.pop(0))
    assert not talk.shop.wait(0)


def test_a_certificate_of_someone_else_is_refused(talk: Conversation, tmp_path: Path) -> None:
    certs.init(tmp_path / "other")
    certs.issue(tmp_path / "other", "bank")
    stranger = Credentials(tmp_path / "other", "bank")
    sent: list[bytes] = []
    EndToEndSession(stranger, "shop", sent.append).start()
    with raises_code(TransportError, "SVFL-TLS-CERTIFICATE"):
        talk.shop.receive(sent[0])
    with pytest.raises(FrameError):
        talk.shop.receive(b"no offer")
    talk.shop.receive(encode_message(talk.bank._offer))  # the refusals have changed nothing


def test_a_weak_key_is_refused(talk: Conversation) -> None:
    with raises_code(FrameError, "SVFL-CRYPTO-KEY"):
        talk.shop.receive(encode_message(KeyOffer(bytes(32), talk.credentials["bank"].certificate)))


@pytest.mark.parametrize("parcel", [("shop", "telco"), ("telco", "hub"), ("shop", "nobody"), ("telco", "bank")])
def test_parcels_under_another_name_are_refused(meet: Any, parcel: tuple[str, str]) -> None:
    meeting = meet(3, "bank")

    class Endpoint:
        me = "shop"
        lines: dict[str, Any] = {}

    with raises_code(FrameError, "SVFL-FRAME"):
        route(Endpoint(), meeting.peers, "shop", EncryptedPacket(*parcel, b""), b"")  # type: ignore[arg-type]


@pytest.mark.parametrize("me", ["bank", "shop"])
def test_a_packet_is_forwarded_for_its_sender_alone(meet: Any, me: str) -> None:
    """A party takes packets of the other party from the hub alone, and the hub forwards those that a party sent itself,
    for every neighbour, named sender and named receiver. A refused packet reaches no line."""
    peers, parties, sent = meet(3, "bank").peers, ("bank", "shop", "telco"), list[tuple[str, bytes]]()

    class Line:
        def __init__(self, name: str) -> None:
            self.name = name

        def send(self, packet: bytes) -> None:
            sent.append((self.name, packet))

    class Endpoint:
        lines = {name: Line(name) for name in (("shop", "telco") if me == "bank" else ("bank",))}

    Endpoint.me = me  # type: ignore[attr-defined]
    for neighbour, sender, receiver in product(Endpoint.lines, (*parties, "nobody"), (*parties, "nobody")):
        packet = f"{neighbour} {sender} {receiver}".encode()
        envelope, arguments = EncryptedPacket(sender, receiver, b""), (peers, neighbour)
        if me == "bank" and sender == neighbour and receiver in Endpoint.lines:
            assert not route(Endpoint(), *arguments, envelope, packet)  # type: ignore[arg-type]
            assert sent.pop() == (receiver, packet)
        elif me == "shop" and (sender, receiver) == ("telco", "shop"):
            assert route(Endpoint(), *arguments, envelope, packet)  # type: ignore[arg-type]
        else:
            with raises_code(FrameError, "SVFL-FRAME"):
                route(Endpoint(), *arguments, envelope, packet)  # type: ignore[arg-type]
        assert not sent


def run_through(meeting: Any, monkeypatch: pytest.MonkeyPatch) -> list[EncryptedPacket]:
    """Run three parties with the bank as hub. Return the packets between the two others as the hub sees them."""
    seen: list[EncryptedPacket] = []

    def spying(endpoint: Any, peers: Any, neighbour: str, parcel: EncryptedPacket, packet: bytes) -> Any:
        if endpoint.me == "bank":
            seen.append(decode_message(EncryptedPacket, packet))
        return route(endpoint, peers, neighbour, parcel, packet)

    monkeypatch.setattr(secure_transport, "route", spying)
    together(meeting)
    return [parcel for parcel in seen if {parcel.sender, parcel.receiver} == {"shop", "telco"}]


def readable(parcels: list[EncryptedPacket]) -> bool:
    """Return whether the job, a party's name or a message's name can be read in the packets after the offers."""
    bodies = [
        parcel.body
        for parcel in parcels
        if b"BEGIN" not in parcel.body and not parcel.body.startswith(b"\x93\xa8KeyOffer")
    ]
    return any(word in body for body in bodies for word in (b"optimizer", b"RunHello", b"telco", b"IdentityProof"))


def test_a_hub_reads_nothing(meet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    parcels = run_through(meet(3, "bank"), monkeypatch)
    assert len(parcels) >= 8
    assert not readable(parcels)


def test_an_unsealed_conversation_would_be_noticed(meet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Open:
        def __init__(self, key: bytes) -> None: ...

        def encrypt(self, nonce: bytes, plain: bytes, _: None) -> bytes:
            return plain

        def decrypt(self, nonce: bytes, body: bytes, _: None) -> bytes:
            return body

    monkeypatch.setattr(end_to_end, "ChaCha20Poly1305", Open)
    assert readable(run_through(meet(3, "bank"), monkeypatch))
