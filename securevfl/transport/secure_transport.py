"""A party's connections to all others: they agree on a session that cannot be replayed, then carry its frames.

A session is one run's exchange of messages, and a frame is one encoded message. `SecureTransport` implements `Wire`,
the interface by which a channel (`securevfl.runtime.channel`) sends frames, between organisations.

    1. all <-> all    SessionOffer   a random nonce, and the handshake: the job and the roles in full
    2. all <-> all    SessionProof   the session id (SHA-256 of the handshake and of all nonces, 16 bytes), signed
    3. all <-> all    Frame          the messages of that session

Every party contributes a fresh nonce, so no set of parties can repeat a session. In step 2 every party presents its
certificate and signs the session id for each receiver. TLS has checked the names before, but gRPC does not give a
client the server's certificate. Therefore only step 2 can check for revocation and record the key. A party that stops
sends Abort: as a packet before step 3, and as a message of the session afterwards (`Channel.abort`).
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from securevfl.errors import (
    ConfigError,
    CryptoError,
    FrameError,
    PeerLost,
    ProtocolError,
    SecureVFLError,
    TransportError,
)
from securevfl.runtime import eventlog
from securevfl.runtime.abort import Abort
from securevfl.runtime.clock import Stamp
from securevfl.runtime.codec import FRAME_FORMAT, SESSION_BYTES, Frame, Message, encode_message
from securevfl.runtime.inbox import Inbox
from securevfl.transport.certificate_checks import check_peer
from securevfl.transport.end_to_end import EndToEndSession
from securevfl.transport.endpoint import Endpoint, SessionRouter
from securevfl.transport.line import Line
from securevfl.transport.packets import (
    EncryptedPacket,
    Packet,
    SessionOffer,
    SessionProof,
    decode_inner_packet,
    decode_packet,
)
from securevfl.transport.peers import Peers
from securevfl.transport.relay import route
from securevfl.transport.tls import Credentials, verify_signature
from securevfl.untrusted import UntrustedInputError, parse_json, shortened

_HANDSHAKE_PACKETS = 2  # number of packets before the session: SessionOffer and SessionProof


class SecureTransport:
    """One party's connections to all others, as the `Wire` that its channel uses.

    Args:
        credentials: key and certificate of this party.
        peers: the parties and their addresses.
        handshake: the data that must be equal at all parties, which all parties may see.
        done: whether this party has its result already, and takes part only so that the others can finish.
        listen: host:port to bind instead of the port in this party's address.
        patience: seconds without a connection after which a party is lost.
        router: a port that several sessions share.
        session_id: a text that this party sends when it calls, by which a shared port finds the session; empty for
            a port of one session. Parties sign another session id.

    Attributes:
        keys: fingerprints of all parties' certificate keys by name, known once the transport is open.
        unfinished: names of the parties that have reported that they have no result yet.
        failure: the error that ended the transport, or None.
    """

    def __init__(
        self,
        credentials: Credentials,
        peers: Peers,
        handshake: Mapping[str, Any],
        *,
        done: bool = False,
        listen: str | None = None,
        patience: float = 60.0,
        router: SessionRouter | None = None,
        session_id: str = "",
    ) -> None:
        self.me = credentials.party
        self.keys = {self.me: credentials.identity.key}
        self._credentials = credentials
        self._peers = peers
        self.unfinished: set[str] = set()
        self._done = done
        self._handshake = json.dumps(handshake, sort_keys=True)
        self._others = [name for name in peers.parties if name != self.me]
        self._endpoint = Endpoint(
            credentials,
            peers,
            self.deliver,
            lambda name, error: self._fail(error),
            listen=listen,
            patience=patience,
            router=router,
            session_id=session_id,
        )
        self._encrypted = {
            name: EndToEndSession(credentials, name, partial(self._send_through_hub, name))
            for name in self._others
            if peers.is_relayed(self.me, name)
        }
        self._arrived: dict[str, deque[SessionOffer | SessionProof]] = {name: deque() for name in self._others}
        self._arrived_count = dict.fromkeys(self._others, 0)  # handshake packets received so far
        self.failure: SecureVFLError | None = None
        self._inbox: Inbox | None = None
        self._wait_causes: dict[str, str] = {}  # the reported reason for waiting for each party
        self._changed = threading.Condition()

    def open(self, timeout: float) -> Inbox:
        """Wait for all parties, compare the handshakes and agree on a session.

        Args:
            timeout: seconds to wait.

        Returns:
            The inbox of the session.

        Raises:
            TransportError: a party has not connected in time; the message names the party and the cause.
            ConfigError: the handshakes differ; the message names the keys.
        """
        deadline = time.monotonic() + timeout
        self._endpoint.start()
        try:
            return self._agree(deadline, timeout)
        except PeerLost:
            raise
        except SecureVFLError as error:
            self.stop(error)
            raise

    def post(self, to: str, frame: bytes, stamp: Stamp | None) -> None:
        """Send a frame to a party; see `Wire.post`."""
        if to not in self._others:
            raise TransportError(f"{to!r} is not a party of this run", code="SVFL-PARTIES-NAME", party=self.me)
        self._line(to).wait_for_space()
        try:
            self._send(to, frame)
        except TransportError as error:
            with self._changed:
                raise self.failure or error from None  # `failure` is the reason that the peer sent before it closed

    def close(self, timeout: float) -> None:
        """Send the remaining packets, wait up to `timeout` seconds until the others have finished, and disconnect."""
        self._endpoint.close(timeout)

    def stop(self, error: BaseException, *, resumes: bool = False) -> None:
        """Notify the others, before a session exists, that this party has stopped because of an error.

        Args:
            error: the error that makes this party stop.
            resumes: whether the parties may resume the run.
        """
        for name in self._others:
            with suppress(TransportError):
                if name not in self._encrypted or self._encrypted[name].wait(0):
                    self._send(name, Abort.of(error, self._others, resumes=resumes))

    def abandon(self) -> None:
        """Disconnect without a notice, so that the others wait for a new process of this party."""
        self._endpoint.abandon()

    def _agree(self, deadline: float, timeout: float) -> Inbox:
        offer = SessionOffer(FRAME_FORMAT, secrets.token_bytes(32), self._handshake, self._done)
        for encrypted in self._encrypted.values():
            encrypted.start()
        for name in self._others:
            if name not in self._encrypted:
                self._send(name, offer)
        waiting = dict(self._encrypted)
        while waiting:
            for name, encrypted in [*waiting.items()]:  # wait briefly for each; none delays the offers to others
                if encrypted.wait(0.1 / len(waiting)):
                    waiting.pop(name)
                    self._send(name, offer)
                else:
                    self._check(name, deadline, timeout)
        offers = {self.me: offer}
        for name in self._others:
            offers[name] = self._next(name, SessionOffer, deadline, timeout)
        digest = hashlib.sha256(b"securevfl session 1" + hashlib.sha256(self._handshake.encode()).digest())
        for name in sorted(offers):
            digest.update(hashlib.sha256(name.encode()).digest() + offers[name].nonce)
        session = digest.digest()[:SESSION_BYTES]
        with self._changed:
            inbox = self._inbox = Inbox(self.me, self._others, session)
            if self.failure is not None:
                raise self.failure
        for name in self._others:
            signature = self._credentials.identity.sign(_claim(session, self.me, name))
            self._send(name, SessionProof(session, self._credentials.certificate, signature))
        for name in self._others:
            proof = self._next(name, SessionProof, deadline, timeout)
            if proof.session != session:
                raise PeerLost(
                    f"{name} and {self.me} have received different session offers",
                    code="SVFL-PEER-LOST",
                    party=self.me,
                    peer=name,
                )
            check_peer(proof.certificate, self._credentials.ca, name)
            self.keys[name] = verify_signature(proof.certificate, proof.signature, _claim(session, name, self.me))
            eventlog.emit(self.me, "peer identified", {"peer": name, "key": self.keys[name]})
        eventlog.emit(self.me, "agreed", {"session": session.hex(), "parties": len(offers)})
        return inbox

    def _next(self, name: str, kind: type[Any], deadline: float, timeout: float) -> Any:
        queue = self._arrived[name]
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: queue or self.failure is not None, 0.2) and queue:
                    message = queue.popleft()
                    if not isinstance(message, kind):
                        raise ProtocolError(
                            f"{name} sent {type(message).__name__} instead of {kind.__name__}",
                            code="SVFL-PROTOCOL-MESSAGE",
                            party=self.me,
                            peer=name,
                        )
                    return message
            self._check(name, deadline, timeout)

    def _wait_cause(self, name: str) -> str:
        """Return why this party still waits for another one."""
        line = self._line(name)
        if not line.opened:
            return f"no connection to {line.peer}: {line.cause}"
        return "it is connected but silent" if name == line.peer else f"it has not called {line.peer}"

    def _check(self, name: str, deadline: float, timeout: float) -> None:
        with self._changed:
            if self.failure is not None:
                raise self.failure
        cause = self._wait_cause(name)
        if self._wait_causes.get(name) != cause:
            self._wait_causes[name] = cause
            eventlog.emit(self.me, "waiting", {"peer": name, "reason": cause}, logging.DEBUG)
        if time.monotonic() > deadline:
            raise TransportError(
                f"{self.me} has waited {timeout:g} s for {name}: {cause}",
                "" if cause.endswith(".") else None,
                code="SVFL-PEER-AWAY",
                away=name,
                peer=name,
            )

    def _line(self, to: str) -> Line:
        return self._endpoint.lines[to if to in self._endpoint.lines else str(self._peers.hub)]

    def _send(self, to: str, packet: Message | bytes) -> None:
        """Send a packet: directly to a neighbour, encrypted to a party behind the hub."""
        data = packet if isinstance(packet, bytes) else encode_message(packet)
        if to in self._encrypted:
            self._encrypted[to].send(data)
        else:
            self._line(to).send(data)

    def _send_through_hub(self, to: str, body: bytes) -> None:
        self._line(to).send(encode_message(EncryptedPacket(self.me, to, body)))

    def deliver(self, neighbour: str, data: bytes) -> None:
        """Process a packet that a neighbour has sent; the endpoint calls it for each packet, in their order.

        Args:
            neighbour: name of the party or hub at the other end of the line.
            data: the packet.

        Raises:
            FrameError: the neighbour must not send such a packet, or not yet.
        """
        packet = decode_packet(self.me, neighbour, data)
        if isinstance(packet, EncryptedPacket):
            if route(self._endpoint, self._peers, neighbour, packet, data):
                self._decrypt(packet)
        elif neighbour in self._others:
            self._accept(neighbour, packet, data)
        elif isinstance(packet, Abort) and packet.party in self._others:
            self._fail(PeerLost(f"the hub has lost {packet.party}", code="SVFL-PEER-LOST", peer=packet.party))
        elif isinstance(packet, Abort) and not packet.party:
            self._fail(packet.error(f"{neighbour}, the hub,", ()))
        else:
            raise FrameError(
                f"the hub {neighbour} sent {type(packet).__name__} to {self.me}, and a hub only forwards packets of "
                f"parties",
                code="SVFL-FRAME",
                party=self.me,
                peer=neighbour,
            )

    def _decrypt(self, envelope: EncryptedPacket) -> None:
        encrypted = self._encrypted[envelope.sender]
        try:
            plain = encrypted.receive(envelope.body)
        except (TransportError, CryptoError) as error:  # the peer's identity is wrong, so sending it again cannot help
            self._fail(error)
            return
        if plain is not None:
            self._accept(envelope.sender, decode_inner_packet(self.me, envelope.sender, plain), plain)
            encrypted.accept()

    def _accept(self, sender: str, packet: Packet, data: bytes) -> None:
        if isinstance(packet, Abort):
            self._fail(packet.error(sender, self._others))
            return
        if isinstance(packet, Frame):
            if self._inbox is None or self._arrived_count[sender] < _HANDSHAKE_PACKETS:
                raise self._frame_error(f"{sender} sent a frame to {self.me} before the session was agreed", sender)
            self._inbox.deliver(data, peer=sender)
            return
        if self._arrived_count[sender] == _HANDSHAKE_PACKETS:
            raise self._frame_error(
                f"{sender} sent another handshake packet to {self.me} after the session was agreed", sender
            )
        if isinstance(packet, SessionOffer):
            if not packet.done:
                self.unfinished.add(sender)
            try:
                self._compare(sender, packet)
            except SecureVFLError as error:
                self._fail(error)
        with self._changed:
            self._arrived_count[sender] += 1
            self._arrived[sender].append(packet)
            self._changed.notify_all()

    def _frame_error(self, problem: str, sender: str) -> FrameError:
        return FrameError(problem, code="SVFL-FRAME", party=self.me, peer=sender)

    def _compare(self, sender: str, offer: SessionOffer) -> None:
        if offer.format != FRAME_FORMAT:
            raise ProtocolError(
                f"{sender} uses message format {offer.format}, and {self.me} uses format {FRAME_FORMAT}",
                "update the older side",
                code="SVFL-PROTOCOL-VERSION",
                party=self.me,
                peer=sender,
            )
        if len(offer.nonce) != 32:
            raise self._frame_error(f"{sender} sent {self.me} a nonce that has not 32 bytes", sender)
        if offer.handshake != self._handshake:
            differences, remedy = _difference(sender, offer.handshake, self.me, self._handshake)
            raise ConfigError(
                f"{sender} and {self.me} differ in {differences}",
                remedy,
                code="SVFL-JOB-MISMATCH",
                party=self.me,
                peer=sender,
            )

    def _fail(self, error: SecureVFLError) -> None:
        with self._changed:
            self.failure = self.failure or error
            if self._inbox is not None:
                self._inbox.fail(self.failure)
            self._changed.notify_all()


_REMEDIES = {
    "task": "run the same command at all parties; `securevfl score` needs peers that run `securevfl serve`",
    "ids by rule": "write --id in the same form at all parties: with a comma after the column (`--id COLUMN,`) or with "
    "several columns, different spellings of an id are normalised before they are compared; otherwise they are not",
}
"""For keys of the handshake, the remedy if two parties have different values. For all other keys, the remedy is that
both use the same job.toml and peers.toml."""


def _claim(session: bytes, sender: str, receiver: str) -> bytes:
    names = b"".join(hashlib.sha256(name.encode()).digest() for name in (sender, receiver))
    return b"securevfl identity 1" + session + names


def _difference(peer: str, theirs: str, me: str, ours: str) -> tuple[str, str]:
    """Compare two handshakes, which are public to all parties.

    Args:
        peer: name of the peer.
        theirs: the peer's handshake as JSON.
        me: name of this party.
        ours: this party's handshake as JSON.

    Returns:
        The first keys in which they differ, with both parties' values, and the remedy.

    Raises:
        FrameError: the peer's handshake is not JSON.
    """
    try:
        left, right = parse_json(theirs.encode(errors="replace")), parse_json(ours.encode())
    except UntrustedInputError:
        raise FrameError(f"{peer} sent a handshake that is not JSON", code="SVFL-FRAME", party=me, peer=peer) from None
    differences = list(_walk("", left, right))
    texts = [f"{shortened(key)} ({peer} {_describe(a)}, {me} {_describe(b)})" for key, a, b in differences]
    for key, remedy in _REMEDIES.items():
        for text, (name, *_) in zip(texts, differences, strict=True):
            if name == key:
                return text, remedy
    if not texts:
        return "the notation of their settings, whose values are equal", "install the same version at all parties"
    return "; ".join(texts[:5]), "give all parties the same job.toml and peers.toml"


def _walk(key: str, left: Any, right: Any) -> list[tuple[str, Any, Any]]:
    if isinstance(left, dict) and isinstance(right, dict):
        return [
            difference
            for name in [*right, *(name for name in left if name not in right)]
            for difference in _walk(f"{key}.{name}" if key else str(name), left.get(name), right.get(name))
        ]
    return [] if left == right else [(key, left, right)]


def _describe(value: Any) -> str:
    return "has none" if value is None else f"has {json.dumps(value)[:80]}"
