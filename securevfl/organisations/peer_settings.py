"""How a party reaches its peers: addresses, certificates and time limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from securevfl.errors import (
    PartiesError,
)
from securevfl.organisations.session_manager import SessionLimits
from securevfl.transport.endpoint import SessionRouter
from securevfl.transport.peers import Peers


@dataclass(frozen=True)
class PeerSettings:
    """Addresses and certificates of the parties, and how long this party waits for them.

    Attributes:
        peers: the parties and their addresses.
        certs: the folder of <party>.pem, <party>.key and ca.pem.
        listen: host:port to bind instead of the port of the party's address.
        timeout: seconds to wait for all parties at the start and after a loss, for each message, and for the others at
            the end.
        patience: seconds without a connection after which a party is lost.
        wait: seconds to wait for all parties at the start, if different from `timeout`; infinity waits without limit.
        session_id: id of the session, if the party has several sessions at a time.
        router: distributes the connections of the shared port to these sessions.
        limits: limits on concurrent sessions.
    """

    peers: Peers
    certs: Path
    listen: str | None = None
    timeout: float = 600.0
    patience: float = 60.0
    wait: float | None = None
    session_id: str = ""
    router: SessionRouter | None = None
    limits: SessionLimits = field(default_factory=SessionLimits)

    @classmethod
    def of(
        cls,
        peers: Peers | str | Path,
        certs: str | Path | None = None,
        listen: str | None = None,
        timeout: float = 600.0,
        patience: float = 60.0,
    ) -> PeerSettings:
        """Create settings from a file of peers.

        Args:
            peers: path of the file of peers, or a loaded `Peers`.
            certs: the folder of certificates; by default the folder of the file of peers, or the current folder if
                `peers` is a `Peers`.
            listen: host:port to bind instead of the port of the party's address.
            timeout: seconds to wait for all parties at the start, for each message, and for the others at the end.
            patience: seconds without a connection after which a party is lost.

        Returns:
            The settings.
        """
        default_certs = Path() if isinstance(peers, Peers) else Path(peers).parent
        loaded = peers if isinstance(peers, Peers) else Peers.load(peers)
        return cls(loaded, default_certs if certs is None else Path(certs), listen, timeout, patience)


def check_among(peers: Peers, me: str) -> None:
    """Raise PartiesError unless this party is one of the peers."""
    if me not in peers.parties:
        raise PartiesError(
            f"{me} is not in the file of peers, which names {', '.join(peers.parties)}",
            "correct the party's name",
            code="SVFL-PARTIES-NAME",
            party=me,
        )
