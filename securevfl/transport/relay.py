"""What a hub does: parcels go on to the party they name. A hub may be a party, or a relay that is none."""

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

_LOOK = 0.2  # seconds between looks at the lines of a relay
_ABORT_SECONDS = 2.0  # seconds for the reason of an early end to reach the parties


def route(endpoint: Endpoint, peers: Peers, neighbour: str, parcel: EncryptedPacket, packet: bytes) -> bool:
    """Whether a neighbour's parcel is for us; if we are the hub, passes one for another party on, packet and all.

    FrameError if its names cannot be.
    """
    me = endpoint.me
    from_hub = neighbour == peers.hub and parcel.sender in peers.parties and parcel.sender not in (neighbour, me)
    if from_hub and parcel.receiver == me:
        return True
    if me == peers.hub and parcel.sender == neighbour and parcel.receiver in endpoint.lines:
        try:
            endpoint.lines[parcel.receiver].send(packet)
        except TransportError:
            eventlog.emit(me, "undelivered", {"peer": parcel.receiver, "bytes": len(packet)})
        return False
    raise FrameError(f"{me}: {neighbour} sent a parcel that names another sender or no receiver of this run")


class Relay:
    """A hub that is no party: passes parcels on until every party has said goodbye.

    When a party is lost the others are told, and the relay waits for all to come back.
    """

    def __init__(
        self, credentials: Credentials, peers: Peers, *, listen: str | None = None, patience: float = 60.0
    ) -> None:
        self._peers = peers
        self._open = partial(Endpoint, credentials, peers, self._deliver, self._lost, listen=listen, patience=patience)
        self._endpoint = self._open()
        self._loss = threading.Event()

    def run(self, timeout: float) -> None:
        """Serve one run, for at most `timeout` seconds after the start or the last loss."""
        try:
            while not self._serve(timeout):
                time.sleep(_LOOK)  # for the others to hear of the loss
                self._endpoint.abandon()
                self._endpoint = self._open()
        except KeyboardInterrupt:
            self._tell(Abort("stopped"))
            self._endpoint.close(_ABORT_SECONDS)
            raise

    def _serve(self, timeout: float) -> bool:
        """Whether all have said goodbye, or the time is over; else a party is lost."""
        self._loss.clear()
        deadline = time.monotonic() + timeout
        self._endpoint.start()
        while time.monotonic() < deadline and not self._loss.wait(_LOOK):
            if all(line.finished for line in self._endpoint.lines.values()):
                break
        if self._loss.is_set():
            return False
        self._endpoint.close(max(0.0, deadline - time.monotonic()))
        return True

    def _deliver(self, neighbour: str, packet: bytes) -> None:
        me = self._endpoint.me
        parcel = decode_packet(me, neighbour, packet)
        if not isinstance(parcel, EncryptedPacket) or parcel.receiver == me:
            raise FrameError(f"{me}: a parcel for a party was expected, {neighbour} has sent something to the hub")
        route(self._endpoint, self._peers, neighbour, parcel, packet)

    def _lost(self, neighbour: str, error: SecureVFLError) -> None:
        self._tell(Abort("away", party=neighbour))
        self._loss.set()

    def _tell(self, abort: Abort) -> None:
        """Says it to all parties but the one that is lost."""
        for name, line in self._endpoint.lines.items():
            if name != abort.party:
                with suppress(TransportError):
                    line.send(encode_message(abort))
