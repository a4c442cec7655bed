"""A party's conversations with all others: a session that nobody can replay, then frames; the `Wire` of a channel.

    1. all <-> all    SessionOffer   a random nonce, the job and the roles in full
    2. all <-> all    SessionProof     the session: SHA-256 of the terms and of everyone's nonces, 16 bytes; signed
    3. all <-> all    Frame      the messages of that session

Everyone puts a fresh nonce in, so a session cannot be made to happen twice. In step 2 everyone shows its certificate
and signs the session for each receiver: TLS has checked the name before, but tells a caller nothing of the certificate,
and so neither whether it was revoked nor which key to remember. Whoever stops says so with Abort: as a letter before
step 3, as a message of the session after that (`Channel.abort`).
"""

from __future__ import annotations

import hashlib
import json
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


class SecureTransport:
    """The wire of one party. `terms` are compared with everyone's: plain data that all parties may see.

    keys: fingerprints of all parties' certificate keys by name, this party's own too, known once it is open.
    """

    def __init__(
        self,
        credentials: Credentials,
        peers: Peers,
        terms: Mapping[str, Any],
        *,
        through: bool = False,
        listen: str | None = None,
        patience: float = 60.0,
        router: SessionRouter | None = None,
        conversation: str = "",
    ) -> None:
        self.me = credentials.party
        self.keys = {self.me: credentials.identity.key}
        self._credentials = credentials
        self._peers = peers
        self.unfinished: set[str] = set()  # who has greeted without an outcome of its own
        self._through = through
        self._terms = json.dumps(terms, sort_keys=True)
        self._others = [name for name in peers.parties if name != self.me]
        self._endpoint = Endpoint(
            credentials,
            peers,
            self._deliver,
            lambda name, error: self._fail(error),
            listen=listen,
            patience=patience,
            router=router,
            conversation=conversation,
        )
        self._seals = {
            name: EndToEndSession(credentials, name, partial(self._through_hub, name))
            for name in self._others
            if peers.is_relayed(self.me, name)
        }
        self._greetings: dict[str, deque[SessionOffer | SessionProof]] = {name: deque() for name in self._others}
        self._heard = dict.fromkeys(self._others, 0)  # greetings, of two
        self._failure: SecureVFLError | None = None
        self._inbox: Inbox | None = None
        self._changed = threading.Condition()

    def open(self, timeout: float) -> Inbox:
        """Wait for all parties, compare terms and agree on a session; return the inbox of that session.

        TransportError names who has not come within `timeout` seconds and why, ConfigError which term differs.
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
        """Hands a frame over; see `Wire`."""
        if to not in self._others:
            raise TransportError(f"{self.me}: a party of this run was expected as receiver, {to!r} is none")
        self._line(to).room()
        try:
            self._put(to, frame)
        except TransportError as error:
            with self._changed:
                raise self._failure or error from None  # the reason, if one was given before the goodbye

    def close(self, timeout: float) -> None:
        """Send what is left, wait up to `timeout` seconds until the others have finished as well, and hang up."""
        self._endpoint.close(timeout)

    def stop(self, error: BaseException, *, resumes: bool = False) -> None:
        """Tells the others, before a session began, that this party has stopped for this error."""
        for name in self._others:
            with suppress(TransportError):
                if name not in self._seals or self._seals[name].wait(0):
                    self._put(name, Abort.of(error, self._others, resumes=resumes))

    def abandon(self) -> None:
        """Hangs up without a word, so that the others find a new process where this one was."""
        self._endpoint.abandon()

    def _agree(self, deadline: float, timeout: float) -> Inbox:
        own = SessionOffer(FRAME_FORMAT, secrets.token_bytes(32), self._terms, self._through)
        for seal in self._seals.values():
            seal.start()
        for name in self._others:
            if name not in self._seals:
                self._put(name, own)
        waiting = dict(self._seals)
        while waiting:
            for name, seal in [*waiting.items()]:  # one that is away keeps nobody from greeting the next
                if seal.wait(0.1 / len(waiting)):
                    waiting.pop(name)
                    self._put(name, own)
                else:
                    self._check(name, deadline, timeout)
        greetings = {self.me: own}
        for name in self._others:
            greetings[name] = self._next(name, SessionOffer, deadline, timeout)
        digest = hashlib.sha256(b"securevfl session 1" + hashlib.sha256(self._terms.encode()).digest())
        for name in sorted(greetings):
            digest.update(hashlib.sha256(name.encode()).digest() + greetings[name].nonce)
        session = digest.digest()[:SESSION_BYTES]
        with self._changed:
            inbox = self._inbox = Inbox(self.me, self._others, session)
            if self._failure is not None:
                raise self._failure
        for name in self._others:
            signature = self._credentials.identity.sign(_claim(session, self.me, name))
            self._put(name, SessionProof(session, self._credentials.certificate, signature))
        for name in self._others:
            agreed = self._next(name, SessionProof, deadline, timeout)
            if agreed.session != session:
                raise PeerLost(f"{name} and {self.me} have not heard the same greetings")
            check_peer(agreed.certificate, self._credentials.ca, name)
            self.keys[name] = verify_signature(agreed.certificate, agreed.signature, _claim(session, name, self.me))
            eventlog.emit(self.me, "identified", {"peer": name, "key": self.keys[name]})
        eventlog.emit(self.me, "agreed", {"session": session.hex(), "parties": len(greetings)})
        return inbox

    def _next(self, name: str, kind: type[Any], deadline: float, timeout: float) -> Any:
        queue = self._greetings[name]
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: queue or self._failure is not None, 0.2) and queue:
                    message = queue.popleft()
                    if not isinstance(message, kind):
                        raise ProtocolError(f"{name} was expected to send {kind.__name__} first; do both run the same?")
                    return message
            self._check(name, deadline, timeout)

    def _check(self, name: str, deadline: float, timeout: float) -> None:
        with self._changed:
            if self._failure is not None:
                raise self._failure
        if time.monotonic() > deadline:
            line = self._line(name)
            cause = "it is connected but silent" if line.opened else f"no connection to {line.peer}: {line.cause}"
            if line.opened and name != line.peer:
                cause = f"it has not called {line.peer}"
            raise TransportError(f"{self.me} has waited {timeout:g} s for {name}; {cause}", away=name)

    def _line(self, to: str) -> Line:
        return self._endpoint.lines[to if to in self._endpoint.lines else str(self._peers.hub)]

    def _put(self, to: str, letter: Message | bytes) -> None:
        """Send a letter: as it is to a neighbour, sealed to a party behind the hub."""
        letter = letter if isinstance(letter, bytes) else encode_message(letter)
        if to in self._seals:
            self._seals[to].send(letter)
        else:
            self._line(to).send(letter)

    def _through_hub(self, to: str, body: bytes) -> None:
        self._line(to).send(encode_message(EncryptedPacket(self.me, to, body)))

    def _deliver(self, neighbour: str, packet: bytes) -> None:
        found = decode_packet(self.me, neighbour, packet)
        if isinstance(found, EncryptedPacket):
            if route(self._endpoint, self._peers, neighbour, found, packet):
                self._unseal(found)
        elif neighbour in self._others:
            self._take(neighbour, found, packet)
        elif isinstance(found, Abort) and found.party in self._others:
            self._fail(PeerLost(f"{found.party} is lost to the hub"))
        elif isinstance(found, Abort) and not found.party:
            self._fail(found.error(f"{neighbour}, the hub,", ()))
        else:
            raise FrameError(f"{self.me}: parcels were expected of the hub, {type(found).__name__} came")

    def _unseal(self, parcel: EncryptedPacket) -> None:
        seal = self._seals[parcel.sender]
        try:
            plain = seal.receive(parcel.body)
        except (TransportError, CryptoError) as error:  # not who it should be, and no better when sent again
            self._fail(error)
            return
        if plain is not None:
            self._take(parcel.sender, decode_inner_packet(self.me, parcel.sender, plain), plain)
            seal.accept()

    def _take(self, sender: str, letter: Packet, data: bytes) -> None:
        if isinstance(letter, Abort):
            self._fail(letter.error(sender, self._others))
            return
        if isinstance(letter, Frame):
            if self._inbox is None or self._heard[sender] < 2:
                raise FrameError(f"{self.me}: a greeting of {sender} was expected first, a frame came")
            self._inbox.deliver(data, peer=sender)
            return
        if self._heard[sender] == 2:
            raise FrameError(f"{self.me}: frames of {sender} were expected, another greeting came")
        if isinstance(letter, SessionOffer):
            if not letter.through:
                self.unfinished.add(sender)
            try:
                self._compare(sender, letter)
            except SecureVFLError as error:
                self._fail(error)
        with self._changed:
            self._heard[sender] += 1
            self._greetings[sender].append(letter)
            self._changed.notify_all()

    def _compare(self, sender: str, greeting: SessionOffer) -> None:
        if greeting.format != FRAME_FORMAT or len(greeting.nonce) != 32:
            raise ProtocolError(f"{sender}: format {FRAME_FORMAT} was expected, {greeting.format} came; update it")
        if greeting.terms != self._terms:
            raise ConfigError(
                f"{sender} and {self.me} differ in " + _difference(sender, greeting.terms, self.me, self._terms)
            )

    def _fail(self, error: SecureVFLError) -> None:
        with self._changed:
            self._failure = self._failure or error
            if self._inbox is not None:
                self._inbox.fail(self._failure)
            self._changed.notify_all()


def _claim(session: bytes, sender: str, receiver: str) -> bytes:
    names = b"".join(hashlib.sha256(name.encode()).digest() for name in (sender, receiver))
    return b"securevfl identity 1" + session + names


def _difference(one: str, theirs: str, other: str, ours: str) -> str:
    """List the first keys in which two terms differ, with both values; terms are public to all parties."""
    try:
        left, right = json.loads(theirs), json.loads(ours)
    except (ValueError, RecursionError):
        raise FrameError(f"{one}: terms in JSON were expected, something else came") from None
    found = [f"{key} ({one} {_shown(a)}, {other} {_shown(b)})" for key, a, b in _walk("", left, right)]
    if any(key == "task" for key, *_ in _walk("", left, right)):
        return "; ".join(found[:1]) + ": run the same command at all parties; score asks those that serve"
    return "; ".join(found[:5]) + ": give all parties the same job.toml and peers.toml"


def _walk(key: str, left: Any, right: Any) -> list[tuple[str, Any, Any]]:
    if isinstance(left, dict) and isinstance(right, dict):
        return [
            step
            for name in [*right, *(name for name in left if name not in right)]
            for step in _walk(f"{key}.{name}" if key else str(name), left.get(name), right.get(name))
        ]
    return [] if left == right else [(key, left, right)]


def _shown(value: Any) -> str:
    return "has none" if value is None else f"has {json.dumps(value)[:80]}"
