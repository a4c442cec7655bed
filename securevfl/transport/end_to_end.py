"""End-to-end encryption between two parties that communicate through a hub.

A *hub* is a party or relay that forwards packets of others. It learns only which party sends to which, when and how
many bytes. Two parties without a line (a direct connection) agree on keys through the hub (by the protocol SIGMA,
Krawczyk 2003):
    1. both   KeyOffer        an ephemeral X25519 key and the certificate
    2. both   IdentityProof   encrypted: a signature, with the certificate's key, of both offers and both names
    3. both                   all further packets, encrypted with ChaCha20-Poly1305

Each direction has a key: HKDF-SHA256 of the X25519 secret, with both offers as salt. The nonce of a packet is its
number, which is not sent, so a packet that the hub replays, drops, reorders or alters does not decrypt.
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
    """The message of step 1.

    Attributes:
        public: ephemeral X25519 key, 32 bytes.
        certificate: the sender's certificate, in DER.
    """

    public: bytes
    certificate: bytes


class IdentityProof(Message, frozen=True):
    """The message of step 2: a signature over both offers and both names."""

    signature: bytes


class EndToEndSession(Secret):
    """One party's end of an encrypted session through the hub.

    Args:
        credentials: key and certificate of this party.
        peer: name of the other party.
        forward: a function that sends bytes to the hub, in order, without blocking.
    """

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
        """Send this party's offer (step 1)."""
        self._forward(encode_message(self._offer))

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the peer's proof of identity; return whether it has arrived."""
        return self._ready.wait(timeout)

    def send(self, plain: bytes) -> None:
        """Encrypt a packet for the other end, and send it."""
        with self._lock:
            assert self._cipher_out is not None, "the peer's offer must arrive first"
            encrypted = self._cipher_out.encrypt(self._sent.to_bytes(12, "little"), plain, None)
            self._sent += 1
            self._forward(encrypted)

    def receive(self, body: bytes) -> bytes | None:
        """Decrypt a packet. A packet that raises an error does not change this object.

        Args:
            body: bytes that arrived through the hub.

        Returns:
            The packet, or None if it belongs to steps 1 and 2.

        Raises:
            FrameError: the packet cannot be decrypted.
            TransportError: the certificate is not the peer's.
            CryptoError: the signature is not the peer's.
        """
        if self._peer_offer is None:
            self._agree(decode_message(KeyOffer, body))
            return None
        assert self._cipher_in is not None
        try:
            plain = self._cipher_in.decrypt(self._received.to_bytes(12, "little"), body, None)
        except InvalidTag:
            raise FrameError(
                f"packet {self._received} of {self._peer} does not decrypt: the hub altered, replayed, dropped or "
                "reordered packets",
                code="SVFL-FRAME",
                party=self._credentials.party,
                peer=self._peer,
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
        """Record that the caller accepted the packet that `receive` returned; the next packet has the next number."""
        self._received += 1

    def _agree(self, offer: KeyOffer) -> None:
        check_peer(offer.certificate, self._credentials.ca, self._peer)
        try:
            shared = self._key.exchange(X25519PublicKey.from_public_bytes(offer.public))
        except ValueError:
            raise FrameError(
                f"{self._peer} sent an invalid X25519 key", code="SVFL-CRYPTO-KEY", peer=self._peer
            ) from None
        me = self._credentials.party
        salt = b"".join(sorted((_digest(me, self._offer), _digest(self._peer, offer))))

        def cipher(sender: str, receiver: str) -> ChaCha20Poly1305:
            info = _CONTEXT + _encode_names(sender, receiver)
            return ChaCha20Poly1305(HKDF(hashes.SHA256(), 32, salt, info).derive(shared))

        self._cipher_out, self._cipher_in = cipher(me, self._peer), cipher(self._peer, me)
        self._peer_offer = offer
        claim = self._claim(me, self._peer, self._offer, offer)
        self.send(encode_message(IdentityProof(self._credentials.identity.sign(claim))))  # step 2

    @staticmethod
    def _claim(sender: str, receiver: str, own: KeyOffer, other: KeyOffer) -> bytes:
        return _CONTEXT + _encode_names(sender, receiver) + _digest(sender, own) + _digest(receiver, other)


def _encode_names(*names: str) -> bytes:
    return b"".join(len(name.encode()).to_bytes(2, "big") + name.encode() for name in names)


def _digest(party: str, offer: KeyOffer) -> bytes:
    return hashlib.sha256(_encode_names(party) + offer.public + offer.certificate).digest()
