"""The parties and their addresses: peers.toml, the same file at every party.

    active = "bank"                        # has the labels
    passives = ["shop", "telco"]

    [address]
    bank = "bank.example.org:7300"         # a party without an address is never called; it calls the others
    shop = "shop.example.org:7300"

Of two parties the one without an address calls the other. If both have one, the first in alphabetical order calls. With
`hub = "bank"` every party calls only the hub, which forwards the encrypted packets of the other parties. The hub may be
one of the parties, or a separate relay with a certificate of that name.
"""

from __future__ import annotations

import ipaddress
from itertools import combinations
from pathlib import Path

from pydantic import Field, model_validator

from securevfl.base.config import Config
from securevfl.errors import ConfigError
from securevfl.untrusted import MAX_NAME, UntrustedInputError, read_toml


class Peers(Config):
    """The parties of a run and how they reach each other.

    Attributes:
        active: name of the party with labels.
        passives: names of the other parties, in the order in which sums are computed.
        hub: name of the hub, if there is one.
        address: host:port by name.
    """

    active: str
    passives: tuple[str, ...] = Field(min_length=1)
    hub: str | None = None
    address: dict[str, str]

    @model_validator(mode="after")
    def _check(self) -> Peers:
        for name in self.everyone:
            if len(name) > MAX_NAME or not name.replace("-", "").replace("_", "").isalnum() or name == "ca":
                raise ValueError(f"the name {name!r} is invalid. Use letters, digits, - and _; ca is reserved")
        if len(set(self.parties)) < len(self.parties):
            raise ValueError("active, passives: a name occurs twice. Give every party a different name")
        for name, address in self.address.items():
            if name not in self.everyone:
                raise ValueError(f"address.{name}: {name} is not a party. Remove it, or add it to passives")
            split_address(name, address)
        for (one, first), (other, second) in combinations(self.address.items(), 2):
            if first == second:
                raise ValueError(f"address: {one} and {other} have the same address {first}. Use different ports")
        if self.hub is not None and self.hub not in self.address:
            raise ValueError(f"address.{self.hub}: the hub's address is missing. Add it as host:port")
        if self.hub is None:
            for one, other in combinations(self.parties, 2):
                if one not in self.address and other not in self.address:
                    raise ValueError(f"address: neither {one} nor {other} has an address. Add one of them, or a hub")
        return self

    @property
    def parties(self) -> tuple[str, ...]:
        """All parties that train, the active party first."""
        return (self.active, *self.passives)

    @property
    def everyone(self) -> tuple[str, ...]:
        """The parties, and the hub if it is a separate relay."""
        return self.parties if self.hub is None or self.hub in self.parties else (*self.parties, self.hub)

    def neighbours(self, me: str) -> tuple[str, ...]:
        """Return the names that have a line to `me`."""
        if self.hub is None or me == self.hub:
            return tuple(name for name in self.parties if name != me)
        return (self.hub,)

    def calls(self, me: str, peer: str) -> bool:
        """Whether `me` opens the connection to its neighbour `peer`, and not the reverse."""
        if self.hub is not None:
            return me != self.hub
        return peer in self.address and (me not in self.address or me < peer)

    def listens(self, me: str) -> bool:
        """Whether any neighbour opens a connection to `me`, so that `me` must listen."""
        return any(not self.calls(me, peer) for peer in self.neighbours(me))

    def is_relayed(self, me: str, peer: str) -> bool:
        """Whether packets between two parties pass through the hub."""
        return peer not in self.neighbours(me)

    @classmethod
    def load(cls, path: str | Path) -> Peers:
        """Read a file of peers, or raise ConfigError with one line for each problem."""
        try:
            with Path(path).open("rb") as file:
                keys = read_toml(file)
        except OSError as cause:
            raise ConfigError(
                f"the file of peers {path} cannot be read ({cause.strerror})",
                "check the path",
                code="SVFL-PEERS-FILE",
                path=str(path),
            ) from None
        except UntrustedInputError as cause:
            raise ConfigError(
                f"the file of peers {path} is not valid TOML: {cause}",
                "correct that line",
                code="SVFL-PEERS-FILE",
                path=str(path),
            ) from None
        return cls(**keys)


def split_address(name: str, address: str) -> tuple[str, int]:
    """Split an address into host and port.

    Args:
        name: the party or the option to which the address belongs, for the message.
        address: `host:port` or `[v6]:port`.

    Returns:
        The host and the port.

    Raises:
        ValueError: the address is invalid.
    """
    host, _, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        ipaddress.IPv6Address(host)
    elif ":" in host:
        host = ""
    if not host or "/" in host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"address.{name} is not of the form host:port. Write it as in bank.example.org:7300")
    return host, int(port)
