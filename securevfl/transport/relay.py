"""The hub's task: forward encrypted packets between parties that have no direct connection.

The hub may be one of the parties, or a relay that is not a party. A line is a direct connection, here from a party to
the hub.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from functools import partial

from securevfl.errors import FrameError, SecureVFLError, TransportError
from securevfl.runtime import eventlog
from securevfl.runtime.abort import Abort
from securevfl.runtime.codec import encode_message
from securevfl.transport.endpoint import Endpoint
from securevfl.transport.packets import EncryptedPacket, decode_packet
from securevfl.transport.peers import Peers
from securevfl.transport.tls import Credentials

_POLL_SECONDS = 0.2  # seconds between checks of a relay's lines
_ABORT_SECONDS = 2.0  # seconds to wait until the parties have received the reason of an early end


def route(endpoint: Endpoint, peers: Peers, neighbour: str, envelope: EncryptedPacket, packet: bytes) -> bool:
    """Handle an encrypted packet: if this party is the hub and the packet is for another party, forward it.

    Args:
        endpoint: this party's lines.
        peers: the parties and the hub.
        neighbour: the neighbour that sent the packet.
        envelope: the decoded packet, which names its sender and receiver.
        packet: the same packet as it arrived, which is forwarded unchanged.

    Returns:
        True if the packet is for this party, which must then decrypt it.

    Raises:
        FrameError: the packet names another sender, or a receiver outside this run.
    """
    me = endpoint.me
    from_hub = neighbour == peers.hub and envelope.sender in peers.parties and envelope.sender not in (neighbour, me)
    if from_hub and envelope.receiver == me:
        return True
    if me == peers.hub and envelope.sender == neighbour and envelope.receiver in endpoint.lines:
        try:
            endpoint.lines[envelope.receiver].send(packet)
        except TransportError:
            eventlog.emit(me, "message undelivered", {"peer": envelope.receiver, "bytes": len(packet)})
        return False
    raise FrameError(
        f"{neighbour} sent a packet that names another sender, or a receiver that is not in this run",
        code="SVFL-FRAME",
        party=me,
        peer=neighbour,
    )


class Relay:
    """A hub that is not a party. It forwards packets until every party has closed its line.

    If a party is lost, the relay notifies the others and waits until all have connected again.

    Args:
        credentials: key and certificate of the relay.
        peers: the parties and the hub.
        listen: host:port to bind instead of the hub's address.
        patience: seconds without a connection after which a party is lost.
    """

    def __init__(
        self, credentials: Credentials, peers: Peers, *, listen: str | None = None, patience: float = 60.0
    ) -> None:
        self._peers = peers
        self._open = partial(Endpoint, credentials, peers, self._deliver, self._lost, listen=listen, patience=patience)
        self._endpoint = self._open()
        self._loss = threading.Event()
        self._latest_packet = 0.0

    def run(self, timeout: float) -> None:
        """Serve one run.

        Args:
            timeout: seconds to wait for a packet.

        Raises:
            TransportError: if no party has sent a packet for `timeout` seconds, and not all of them have ended the run.
        """
        try:
            while not self._serve(timeout):
                time.sleep(_POLL_SECONDS)  # so that the other parties receive the abort before the lines end
                self._endpoint.abandon()
                self._endpoint = self._open()
        except KeyboardInterrupt:
            self._notify(Abort("stopped"))
            self._endpoint.close(_ABORT_SECONDS)
            raise

    def _serve(self, timeout: float) -> bool:
        """Return True when all lines are closed, and False when a party is lost."""
        self._loss.clear()
        self._latest_packet = time.monotonic()
        self._endpoint.start()
        while not self._loss.wait(_POLL_SECONDS):
            if all(line.finished for line in self._endpoint.lines.values()):
                self._endpoint.close(timeout)
                return True
            if time.monotonic() - self._latest_packet > timeout:
                self._notify(Abort("stopped"))
                self._endpoint.close(_ABORT_SECONDS)
                raise TransportError(
                    f"no party has sent a packet to the hub {self._endpoint.me} for {timeout:g} seconds",
                    "start the hub and the parties again",
                    code="SVFL-PEER-AWAY",
                    party=self._endpoint.me,
                )
        return False

    def _deliver(self, neighbour: str, packet: bytes) -> None:
        me = self._endpoint.me
        self._latest_packet = time.monotonic()
        envelope = decode_packet(me, neighbour, packet)
        if not isinstance(envelope, EncryptedPacket) or envelope.receiver == me:
            raise FrameError(
                f"{neighbour} sent a packet to the hub {me} instead of to a party",
                code="SVFL-FRAME",
                party=me,
                peer=neighbour,
            )
        route(self._endpoint, self._peers, neighbour, envelope, packet)

    def _lost(self, neighbour: str, error: SecureVFLError) -> None:
        self._notify(Abort("away", party=neighbour))
        self._loss.set()

    def _notify(self, abort: Abort) -> None:
        """Send an abort to all parties except the one that is lost."""
        for name, line in self._endpoint.lines.items():
            if name != abort.party:
                with suppress(TransportError):
                    line.send(encode_message(abort))
