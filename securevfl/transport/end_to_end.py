"""A sealed conversation of two parties through a hub, which sees who writes to whom and how much, and nothing else.

Two parties A and B that have no line to each other agree on keys through the hub (the SIGMA pattern of Krawczyk 2003):

    1. both   KeyOffer   an ephemeral X25519 key and the certificate
    2. both   IdentityProof       sealed: a signature by the certificate's key over both offers and who sends to whom
    3. both               everything else sealed: ChaCha20-Poly1305, the message's number as nonce

Keys are HKDF-SHA256 of the X25519 secret, one for each direction, salted with both offers. Numbers are not sent: a
message that was replayed, dropped, swapped or altered by the hub does not open. A hub that puts its own key into an
offer cannot sign for it.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from securevfl.crypto.secret import Secret
from securevfl.errors import FrameError
from securevfl.runtime.codec import Message, decode_message, encode_message
from securevfl.transport.certificate_checks import check_peer
from securevfl.transport.tls import Credentials, verify_signature

_CONTEXT = b"securevfl seal 1"


class KeyOffer(Message, frozen=True):
    """public: 32 bytes, X25519; certificate: DER."""

    public: bytes
    certificate: bytes


class IdentityProof(Message, frozen=True):
    """The sender made its offer for this receiver and has seen the receiver's."""

    signature: bytes


class EndToEndSession(Secret):
    """One party's end of a sealed conversation. `forward` takes what goes to the hub, in order, and must not wait."""

    def __init__(self, credentials: Credentials, peer: str, forward: Callable[[bytes], None]) -> None:
        self._credentials = credentials
        self._peer = peer
        self._forward = forward
        self._key = X25519PrivateKey.generate()
        self._offer = KeyOffer(self._key.public_key().public_bytes_raw(), credentials.certificate)
        self._peer_offer: KeyOffer | None = None
        self._cipher_in: ChaCha20Poly1305 | None = None
        self._cipher_out: ChaCha20Poly1305 | None = None
        self._sent = self._received = 0
        self._lock = threading.Lock()
        self._ready = threading.Event()

    def start(self) -> None:
        """Step 1."""
        self._forward(encode_message(self._offer))

    def wait(self, timeout: float) -> bool:
        """Whether the peer has proved who it is, within so many seconds."""
        return self._ready.wait(timeout)

    def send(self, plain: bytes) -> None:
        """Seals and forwards a message."""
        with self._lock:
            assert self._cipher_out is not None, "the peer's offer comes first"
            sealed = self._cipher_out.encrypt(self._sent.to_bytes(12, "little"), plain, None)
            self._sent += 1
            self._forward(sealed)

    def receive(self, body: bytes) -> bytes | None:
        """Open what came through the hub; None where it was part of steps 1 and 2. Nothing changes if it is refused.

        FrameError if it does not open; TransportError or CryptoError if the peer is not who it should be.
        """
        if self._peer_offer is None:
            self._agree(decode_message(KeyOffer, body))
            return None
        assert self._cipher_in is not None
        try:
            plain = self._cipher_in.decrypt(self._received.to_bytes(12, "little"), body, None)
        except InvalidTag:
            raise FrameError(
                f"{self._credentials.party}: message {self._received} of {self._peer} was expected through the hub; "
                "what came was altered, replayed, lost or out of order"
            ) from None
        if not self._ready.is_set():
            proof = decode_message(IdentityProof, plain)
            claim = self._claim(self._peer, self._credentials.party, self._peer_offer, self._offer)
            verify_signature(self._peer_offer.certificate, proof.signature, claim)
            self._received += 1
            self._ready.set()
            return None
        return plain

    def accept(self) -> None:
        """Note that the message last received has been accepted, so that the next one is another."""
        self._received += 1

    def _agree(self, offer: KeyOffer) -> None:
        check_peer(offer.certificate, self._credentials.ca, self._peer)
        try:
            shared = self._key.exchange(X25519PublicKey.from_public_bytes(offer.public))
        except ValueError:
            raise FrameError(f"{self._peer}: an X25519 key of 32 bytes was expected, another came") from None
        me = self._credentials.party
        salt = b"".join(sorted((_digest(me, self._offer), _digest(self._peer, offer))))

        def cipher(sender: str, receiver: str) -> ChaCha20Poly1305:
            info = _CONTEXT + _named(sender, receiver)
            return ChaCha20Poly1305(HKDF(hashes.SHA256(), 32, salt, info).derive(shared))

        self._cipher_out, self._cipher_in = cipher(me, self._peer), cipher(self._peer, me)
        self._peer_offer = offer
        claim = self._claim(me, self._peer, self._offer, offer)
        self.send(encode_message(IdentityProof(self._credentials.identity.sign(claim))))  # step 2

    @staticmethod
    def _claim(sender: str, receiver: str, own: KeyOffer, other: KeyOffer) -> bytes:
        return _CONTEXT + _named(sender, receiver) + _digest(sender, own) + _digest(receiver, other)


def _named(*names: str) -> bytes:
    return b"".join(len(name.encode()).to_bytes(2, "big") + name.encode() for name in names)


def _digest(party: str, offer: KeyOffer) -> bytes:
    return hashlib.sha256(_named(party) + offer.public + offer.certificate).digest()
