"""A party's lines to its neighbours over gRPC: one service, one bidirectional stream for each pair, mutual TLS 1.3.

A neighbour is a party (or hub) to which this party has a direct connection, called a line. A stream is one gRPC call
that carries the line's packets. One of two neighbours calls (`Peers.calls`), and calls again when the stream breaks;
both send and receive on it. A session is one run's exchange of messages; the caller names it in the metadata of the
call. gRPC sees messages as bytes, and `transport.line_messages` encodes them; no code is generated.
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

_POLL_SECONDS = 0.2  # seconds between two checks of whether lines have timed out or ended


class SessionRouter(Protocol):
    """Interface of a port that several sessions of this party share.

    A session is one run's exchange of messages between all parties. A client names it by its session id when it calls.
    """

    def add_session(self, session_id: str, lines: Mapping[str, Line]) -> None:
        """Route clients that name this session to its lines."""

    def remove_session(self, session_id: str) -> None:
        """Stop routing clients to this session."""


class Endpoint:
    """The lines of one party or relay to its neighbours.

    Args:
        credentials: key and certificate of this party.
        peers: the parties and their addresses.
        deliver: called with the neighbour's name and each packet, from one thread for each neighbour. A SecureVFLError
            that it raises refuses the packet.
        failed: called with the neighbour's name and the error when a line fails.
        listen: host:port to bind instead of the port of this party's address.
        patience: seconds without a connection after which a neighbour is lost.
        router: a port that several sessions share; by default this endpoint opens its own.
        session_id: the session id that this endpoint sends when it calls.
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
        session_id: str = "",
    ) -> None:
        self.me = credentials.party
        self._credentials = credentials
        self._peers = peers
        self._listen = listen
        self._router, self._session_id = router, session_id
        self._stopped = threading.Event()
        self._acceptor: Acceptor | None = None
        self._callers: dict[str, threading.Thread] = {}  # the threads that call neighbours, by name of the neighbour
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
                line.cause = f"nothing has answered at {peers.address[name]}"

    def start(self) -> None:
        """Listen for neighbours and call them.

        Raises:
            ConfigError: the port cannot be used, or gRPC would accept TLS 1.2 on it.
        """
        if self._router is not None:
            self._router.add_session(self._session_id, self.lines)
        elif self._peers.listens(self.me):
            self._acceptor = Acceptor(
                self._credentials,
                self.lines,
                self._peers.address[self.me],
                lambda session_id, name: self.lines[name],
                refused=self._note_refusal,
                listen=self._listen,
                streams=2 * len(self.lines) + 2,
            )
        for name, line in self.lines.items():
            if self._peers.calls(self.me, name):
                self._callers[name] = threading.Thread(
                    target=self._call, args=(line,), name=f"call {name}", daemon=True
                )
                self._callers[name].start()
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def close(self, timeout: float) -> None:
        """Send the remaining packets, wait up to `timeout` seconds until all neighbours have closed, and stop.

        A hub closes its lines last, because it still forwards packets of the others.
        """
        deadline = time.monotonic() + timeout
        if self.me == self._peers.hub:
            while not all(line.finished for line in self.lines.values()) and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS / 4)
        timeout = max(REFUSAL_SECONDS, deadline - time.monotonic())
        closers = [threading.Thread(target=line.close, args=(timeout,), daemon=True) for line in self.lines.values()]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join()
        self._stopped.set()
        self._release_port(REFUSAL_SECONDS)
        self._end_calls(REFUSAL_SECONDS)

    def abandon(self) -> None:
        """Stop at once, without notifying the neighbours."""
        self._stopped.set()
        for line in self.lines.values():
            line.abandon(self._hung_up())
        self._release_port(None)

    def _hung_up(self) -> PeerLost:
        return PeerLost(f"{self.me} has closed the connection", code="SVFL-PEER-LOST", party=self.me)

    def _release_port(self, grace: float | None) -> None:
        if self._router is not None:
            self._router.remove_session(self._session_id)
            # end the streams, because each neighbour that stays connected would occupy a thread of the shared port
            for line in self.lines.values():
                line.abandon(self._hung_up())
        elif self._acceptor is not None:
            self._acceptor.stop(grace)

    def _end_calls(self, grace: float) -> None:
        """End the calls that neighbours have not ended after `grace` seconds."""
        deadline = time.monotonic() + grace
        for name, caller in self._callers.items():
            caller.join(max(0.0, deadline - time.monotonic()))
            if caller.is_alive():
                self.lines[name].abandon(self._hung_up())

    def _note_refusal(self, name: str, error: SecureVFLError) -> None:
        line = self.lines.get(name)
        if line is not None and not line.opened:
            line.cause = f"it was refused: {error}"

    def _call(self, line: Line) -> None:
        """Call a neighbour, and call again whenever the stream breaks, until the line is over."""
        host, port = split_address(line.peer, self._peers.address[line.peer])
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        pause, previous_cause = 0.05, ""
        metadata = ((SESSION_ID_KEY, self._session_id),) if self._session_id else ()
        while not self._stopped.is_set() and not line.over:
            try:
                stream = line.begin(calling=True)
            except SecureVFLError:
                return
            options = [*GRPC_OPTIONS, ("grpc.ssl_target_name_override", server_name(line.peer))]
            cause = "the stream was cut"
            with grpc.secure_channel(target, self._credentials.identity.channel_credentials(), options) as channel:
                call = channel.stream_stream(STREAM_METHOD)(stream.outgoing(), metadata=metadata)
                stream.set_hang_up(call.cancel)
                try:
                    stream.read(call)
                    cancel_later = threading.Timer(REFUSAL_SECONDS, call.cancel)
                    cancel_later.start()
                    for _ in call:
                        pass
                    cancel_later.cancel()
                except grpc.RpcError as error:
                    cause = f"{error.code().name.lower().replace('_', ' ')}: {error.details()}"
            if stream.end(cause):
                eventlog.warn(self.me, "connection interrupted", {"peer": line.peer, "cause": cause})
                pause = 0.05
            elif not line.over and not self._stopped.is_set():
                diagnosis = diagnose(host, port, line.peer, self._credentials)
                line.cause = str(diagnosis) if diagnosis is not None else stream.cause
                if diagnosis is not None and not line.opened and str(diagnosis) == previous_cause:
                    # the same cause twice in a row: it is permanent, and not a server that was just shutting down
                    line.fail(diagnosis)
                previous_cause = line.cause
            self._stopped.wait(pause)
            pause = min(2 * pause, 1.0)

    def _watch(self) -> None:
        reported = False
        while not self._stopped.wait(_POLL_SECONDS):
            for line in self.lines.values():
                line.watch()
            handshakes = None if self._acceptor is None else self._acceptor.handshakes
            if not reported and handshakes is not None and (failed := handshakes.count_failed()):
                reported = self._report_failed_handshakes(failed)

    def _report_failed_handshakes(self, failed: int) -> bool:
        """Report failed handshakes to the operator; return True if a neighbour is not connected yet."""
        missing = [
            line for line in self.lines.values() if not line.opened and not self._peers.calls(self.me, line.peer)
        ]
        for line in missing:
            line.cause = (
                f"{failed} TLS handshakes have failed. Either one side refused the other's certificate, and the output "
                f"at {line.peer} states the reason, or another program called. Compare the output of `securevfl certs "
                "show ca.pem` at both parties"
            )
            eventlog.emit(self.me, "handshakes fail", {"peer": line.peer, "reason": line.cause}, logging.ERROR)
        return bool(missing)
