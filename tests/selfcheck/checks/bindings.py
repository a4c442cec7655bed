"""Signatures between organisations bind to each field of the session: if a field changes, the peer must refuse.

bound       a signature is accepted for another session, sender, receiver or offer; or the name of a session does
            not depend on the terms, all names and all nonces
fresh       two handshakes of the same parties have the same session
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest import mock

from securevfl.audit.transcript_checks import Outcome
from securevfl.errors import CryptoError, SecureVFLError
from securevfl.runtime.codec import encode_message
from securevfl.transport import certs, secure_transport
from securevfl.transport.end_to_end import EndToEndSession, KeyOffer
from securevfl.transport.packets import SessionOffer, SessionProof, decode_packet
from securevfl.transport.peers import Peers
from securevfl.transport.secure_transport import SecureTransport
from securevfl.transport.tls import Credentials

_TIMEOUT = 10.0
_PEERS = Peers(active="bank", passives=("shop",), address={"bank": "localhost:1", "shop": "localhost:2"})

Forge = Callable[[SessionProof], SessionProof]


@contextmanager
def _certified() -> Iterator[dict[str, Credentials]]:
    """Return three parties with certificates of one authority."""
    with tempfile.TemporaryDirectory() as folder:
        certs.init(Path(folder))
        for name in ("bank", "shop", "telco"):
            certs.issue(Path(folder), name)
        yield {name: Credentials(Path(folder), name) for name in ("bank", "shop", "telco")}


class _Endpoint:
    """Lines within this process. The shop's message of the handshake may be altered in transit."""

    meeting: dict[str, _Endpoint]
    forge: Forge
    greetings: dict[str, SessionOffer]

    def __init__(self, credentials: Credentials, peers: Peers, deliver: Any, failed: Any, **_: Any) -> None:
        self.me, self.deliver = credentials.party, deliver
        self.lines = {name: _Line(self, name) for name in peers.neighbours(self.me)}
        self.meeting[self.me] = self

    def start(self) -> None:
        return

    def close(self, timeout: float) -> None:
        return

    def send(self, to: str, packet: bytes) -> None:
        letter = decode_packet(to, self.me, packet)
        if isinstance(letter, SessionOffer):
            self.greetings[self.me] = letter
        elif isinstance(letter, SessionProof) and self.me == "shop":
            packet = encode_message(self.forge(letter))
        self.meeting[to].deliver(self.me, packet)


@dataclass
class _Line:
    owner: _Endpoint
    peer: str
    opened: bool = True
    cause: str = ""

    def send(self, packet: bytes) -> None:
        self.owner.send(self.peer, packet)


def _meet(
    credentials: dict[str, Credentials], forge: Forge, greetings: dict[str, SessionOffer] | None = None
) -> bytes | SecureVFLError:
    """Let bank and shop agree on a session. Return the bank's session or its error."""
    outcomes: dict[str, bytes | SecureVFLError] = {}
    heard = {} if greetings is None else greetings
    endpoint = type("Endpoint", (_Endpoint,), {"meeting": {}, "forge": staticmethod(forge), "greetings": heard})

    def play(transport: SecureTransport) -> None:
        try:
            outcomes[transport.me] = transport.open(_TIMEOUT).session
        except SecureVFLError as error:
            outcomes[transport.me] = error

    with mock.patch.object(secure_transport, "Endpoint", endpoint):
        posts = [SecureTransport(credentials[name], _PEERS, {"job": "one"}) for name in ("bank", "shop")]
    threads = [threading.Thread(target=play, args=(post,), name=post.me, daemon=True) for post in posts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes["bank"]


def signatures() -> Outcome:
    """Check the signatures of the agreement on a session, and of the offers of a sealed conversation."""
    outcome = Outcome()
    with _certified() as credentials:
        _agreed(outcome, credentials)
        _proofs(outcome, credentials)
    return outcome


def _agreed(outcome: Outcome, credentials: dict[str, Credentials]) -> None:
    shop, telco = (credentials[name] for name in ("shop", "telco"))
    greetings: dict[str, SessionOffer] = {}
    sessions = [_meet(credentials, lambda agreed: agreed, greetings) for _ in range(2)]
    if not all(isinstance(session, bytes) for session in sessions):
        outcome.add("bound", "session", "parties that are who they should be do not meet")
    elif sessions[1] != _session(greetings):
        outcome.add("bound", "session", "its name is not the hash of terms, names and nonces")
    if sessions[0] == sessions[1]:
        outcome.add("fresh", "session", "two meetings of the same parties are one session")

    def signed(session: bytes | None, sender: str, receiver: str, by: Credentials = shop) -> Forge:
        def forge(agreed: SessionProof) -> SessionProof:
            claim = secure_transport._claim(session or agreed.session, sender, receiver)
            return SessionProof(agreed.session, by.certificate, by.identity.sign(claim))

        return forge

    for what, forge in (
        ("another session", signed(bytes(16), "shop", "bank")),
        ("another sender", signed(None, "telco", "bank")),
        ("another receiver", signed(None, "shop", "telco")),
        ("another party's key", signed(None, "shop", "bank", by=telco)),
        (
            "nothing of the session",
            lambda agreed: SessionProof(agreed.session, shop.certificate, shop.identity.sign(b"")),
        ),
    ):
        if isinstance(_meet(credentials, forge), bytes):
            outcome.add("bound", "session", f"a signature for {what} is taken")


def _session(greetings: dict[str, SessionOffer]) -> bytes:
    """Return 16 bytes of SHA-256 of the terms and of each name and nonce, in the order of names."""
    names = [(sha256(name.encode()).digest(), greetings[name].nonce) for name in sorted(greetings)]
    handshake = sha256(greetings["bank"].handshake.encode()).digest()
    return sha256(b"securevfl session 1" + handshake + b"".join(part for pair in names for part in pair)).digest()[:16]


@dataclass
class _Shown:
    """Credentials whose owner signs something other than requested."""

    party: str
    ca: bytes
    certificate: bytes
    identity: Any


class _Forger:
    def __init__(self, inner: Any) -> None:
        self._inner, self.claim = inner, b""

    def sign(self, data: bytes) -> bytes:
        return bytes(self._inner.sign(self.claim or data))


def _proofs(outcome: Outcome, credentials: dict[str, Credentials]) -> None:
    """Check that the bank refuses, through a hub, a proof of the shop's offer by a signature made for something
    else."""
    bank, shop = credentials["bank"], credentials["shop"]
    old = KeyOffer(bytes(range(32)), shop.certificate)
    claims: dict[str, Callable[[KeyOffer, KeyOffer], bytes] | None] = {
        "nothing else": None,
        "another receiver": lambda offer, other: EndToEndSession._claim("shop", "telco", offer, other),
        "another sender": lambda offer, other: EndToEndSession._claim("telco", "bank", offer, other),
        "another offer of the same sender": lambda offer, other: EndToEndSession._claim("shop", "bank", old, other),
        "another offer of the receiver's": lambda offer, other: EndToEndSession._claim("shop", "bank", offer, old),
    }
    for what, claim in claims.items():
        to_bank: list[bytes] = []
        forger = _Forger(shop.identity)
        ours = EndToEndSession(bank, "shop", lambda body: None)
        theirs = EndToEndSession(_Shown("shop", shop.ca, shop.certificate, forger), "bank", to_bank.append)  # type: ignore[arg-type]
        if claim is not None:
            forger.claim = claim(theirs._offer, ours._offer)
        theirs.start()
        theirs.receive(encode_message(ours._offer))
        ours.receive(to_bank[0])
        try:
            ours.receive(to_bank[1])
        except CryptoError:
            if claim is None:
                outcome.add("bound", "hub", "a party that is who it should be is refused")
            continue
        if claim is not None:
            outcome.add("bound", "hub", f"a proof for {what} is taken")


CHECKS: dict[str, Callable[[], Outcome]] = {"signatures are bound": signatures}
