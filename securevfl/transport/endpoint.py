"""Lines over gRPC: one service, one bidirectional stream of opaque messages between two neighbours, mutual TLS 1.3.

Of two neighbours one calls (`Peers.calls`) and calls again when the stream is cut; both send and receive on it. No code
is generated: messages are bytes to gRPC and structs of `transport.line` to us.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from securevfl.errors import PeerLost, SecureVFLError
from securevfl.runtime import eventlog
from securevfl.transport.acceptor import GRPC_OPTIONS, REFUSAL_SECONDS, SESSION_ID_KEY, STREAM_METHOD, Acceptor
from securevfl.transport.certificate_names import server_name
from securevfl.transport.grpc_tls13 import grpc
from securevfl.transport.line import Line
from securevfl.transport.peers import Peers, split_address
from securevfl.transport.tls import Credentials, diagnose

_TICK = 0.2  # seconds between looks at the lines


class SessionRouter(Protocol):
    """A port that several conversations share."""

    def add_session(self, conversation: str, lines: Mapping[str, Line]) -> None:
        """Hand who calls about this conversation to its lines."""

    def remove_session(self, conversation: str) -> None:
        """Hand nobody to this conversation any more."""


class Endpoint:
    """One party's or relay's lines to its neighbours.

    deliver(neighbour, packet) is called for every packet, from one thread a neighbour; a SecureVFLError it raises
    refuses the packet. failed(neighbour, error) is called when a line is lost. listen: host:port to bind instead of
    the port of the party's own address. patience: seconds without a connection after which a neighbour is lost.
    conversation: the name by which it calls. hall: a port that several conversations share; its own if None.
    """

    def __init__(
        self,
        credentials: Credentials,
        peers: Peers,
        deliver: Callable[[str, bytes], None],
        failed: Callable[[str, SecureVFLError], None],
        *,
        listen: str | None = None,
        patience: float = 60.0,
        router: SessionRouter | None = None,
        conversation: str = "",
    ) -> None:
        self.me = credentials.party
        self._credentials = credentials
        self._peers = peers
        self._at = listen
        self._router, self._conversation = router, conversation
        self._stopped = threading.Event()
        self._acceptor: Acceptor | None = None
        start = secrets.token_bytes(16)
        self.lines = {
            name: Line(
                self.me,
                name,
                lambda packet, name=name: deliver(name, packet),  # type: ignore[misc]
                lambda error, name=name: failed(name, error),  # type: ignore[misc]
                start=start,
                patience=patience,
            )
            for name in peers.neighbours(self.me)
        }
        for name, line in self.lines.items():
            if peers.calls(self.me, name):
                line.cause = f"nobody has answered at {peers.address[name]}"

    def start(self) -> None:
        """Start to listen for neighbours and to call them. Raises ConfigError if the port cannot be had or would take
        TLS 1.2."""
        if self._router is not None:
            self._router.add_session(self._conversation, self.lines)
        elif self._peers.listens(self.me):
            self._acceptor = Acceptor(
                self._credentials,
                self.lines,
                self._peers.address[self.me],
                lambda conversation, name: self.lines[name],
                refused=self._refused,
                listen=self._at,
                streams=2 * len(self.lines) + 2,
            )
        for name, line in self.lines.items():
            if self._peers.calls(self.me, name):
                threading.Thread(target=self._call, args=(line,), name=f"call {name}", daemon=True).start()
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def close(self, timeout: float) -> None:
        """Send what is left, wait up to `timeout` seconds for every neighbour's goodbye, and stop.

        A hub says its own goodbye last, as it passes on what the others still have to say.
        """
        deadline = time.monotonic() + timeout
        if self.me == self._peers.hub:
            while not all(line.finished for line in self.lines.values()) and time.monotonic() < deadline:
                time.sleep(_TICK / 4)
        timeout = max(REFUSAL_SECONDS, deadline - time.monotonic())
        closers = [threading.Thread(target=line.close, args=(timeout,), daemon=True) for line in self.lines.values()]
        for each in closers:
            each.start()
        for each in closers:
            each.join()
        self._stopped.set()
        self._leave(REFUSAL_SECONDS)

    def abandon(self) -> None:
        """Stop at once, without a goodbye."""
        self._stopped.set()
        for line in self.lines.values():
            line.abandon(PeerLost(f"{self.me} has hung up"))
        self._leave(None)

    def _leave(self, grace: float | None) -> None:
        if self._router is not None:
            self._router.remove_session(self._conversation)
            for line in self.lines.values():  # whoever is still there holds no thread of this party's
                line.abandon(PeerLost(f"{self.me} has hung up"))
        elif self._acceptor is not None:
            self._acceptor.stop(grace)

    def _refused(self, name: str, error: SecureVFLError) -> None:
        line = self.lines.get(name)
        if line is not None and not line.opened:
            line.cause = f"it was refused: {error}"

    def _call(self, line: Line) -> None:
        """Keep a stream open to a neighbour that waits to be called."""
        host, port = split_address(line.peer, self._peers.address[line.peer])
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        pause, before = 0.05, ""
        named = ((SESSION_ID_KEY, self._conversation),) if self._conversation else ()
        while not self._stopped.is_set() and not line.over:
            try:
                stream = line.begin(calling=True)
            except SecureVFLError:
                return
            options = [*GRPC_OPTIONS, ("grpc.ssl_target_name_override", server_name(line.peer))]
            cause = "the stream was cut"
            with grpc.secure_channel(target, self._credentials.identity.channel_credentials(), options) as channel:
                call = channel.stream_stream(STREAM_METHOD)(stream.outgoing(), metadata=named)
                stream.hang_up = call.cancel
                try:
                    stream.read(call)
                    last_word = threading.Timer(REFUSAL_SECONDS, call.cancel)
                    last_word.start()
                    for _ in call:
                        pass
                    last_word.cancel()
                except grpc.RpcError as error:
                    cause = f"{error.code().name.lower().replace('_', ' ')}: {error.details()}"
            if stream.end(cause):
                eventlog.warn(self.me, "cut", {"peer": line.peer, "cause": cause})
                pause = 0.05
            elif not line.over and not self._stopped.is_set():
                found = diagnose(host, port, line.peer, self._credentials)
                line.cause = str(found) if found is not None else stream.cause
                if found is not None and not line.opened and str(found) == before:
                    line.fail(found)  # seen twice, so it was not a server on its way down
                before = line.cause
            self._stopped.wait(pause)
            pause = min(2 * pause, 1.0)

    def _watch(self) -> None:
        said = False
        while not self._stopped.wait(_TICK):
            for line in self.lines.values():
                line.watch()
            handshakes = None if self._acceptor is None else self._acceptor.handshakes
            if not said and handshakes is not None and (failed := handshakes.count_failed()):
                said = self._say_turned_away(failed)

    def _say_turned_away(self, failed: int) -> bool:
        """Tell the people at this party why nobody comes in, where somebody is waited for; whether there was one."""
        missing = [
            line for line in self.lines.values() if not line.opened and not self._peers.calls(self.me, line.peer)
        ]
        for line in missing:
            line.cause = (
                f"{failed} calls came and none got through TLS: one side refused the other's certificate, and "
                f"{line.peer}'s screen says why, or it was another program; compare what `securevfl certs show ca.pem` "
                "prints at both"
            )
            eventlog.emit(self.me, "no call gets through", {"peer": line.peer, "reason": line.cause}, logging.ERROR)
        return bool(missing)
