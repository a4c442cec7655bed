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
    """The meeting point of a party and its peers, and how long the party waits for them.

    certs: the folder of <party>.pem, <party>.key and ca.pem. listen: host:port to bind where it is not the port of the
    party's address. timeout: seconds to wait for all parties at the start and after a loss, for any one message, and
    at the end for the others. patience: seconds a party may be cut off. wait: seconds for all parties to be there at
    the start, if not `timeout`; infinity waits for whoever comes. conversation: its name, where a party may hold
    several; hall: the port that these share; room: how many there may be.
    """

    peers: Peers
    certs: Path
    listen: str | None = None
    timeout: float = 600.0
    patience: float = 60.0
    wait: float | None = None
    conversation: str = ""
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
        """Make a venue from the peers given, or from those in the file given; certificates are looked for beside that
        file unless `certs` names another folder."""
        beside = Path() if isinstance(peers, Peers) else Path(peers).parent
        known = peers if isinstance(peers, Peers) else Peers.load(peers)
        return cls(known, beside if certs is None else Path(certs), listen, timeout, patience)


def check_among(peers: Peers, me: str) -> None:
    """PartiesError unless this party is one of the peers."""
    if me not in peers.parties:
        raise PartiesError(f"one of {', '.join(peers.parties)} was expected, {me} came; correct the party's name")
