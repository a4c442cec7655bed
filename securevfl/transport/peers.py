"""Who takes part and where each party is found: peers.toml, the same file at every party.

    active = "bank"                        # holds the labels
    passives = ["shop", "telco"]

    [address]
    bank = "bank.example.org:7300"         # who has none is never called, it calls
    shop = "shop.example.org:7300"

Of two parties the one without an address calls the other; where both have one, the first in alphabetical order calls.
With `hub = "bank"` every party calls the hub and nobody else, and what two others say to each other passes through it
sealed. The hub may be one of the parties or a relay of its own, whose certificate carries that name.
"""

from __future__ import annotations

import ipaddress
import tomllib
from itertools import combinations
from pathlib import Path

from pydantic import Field, model_validator

from securevfl.base.config import Config
from securevfl.errors import ConfigError


class Peers(Config):
    """active, passives: names, in the order in which sums are taken. hub: who relays. address: host:port by name."""

    active: str
    passives: tuple[str, ...] = Field(min_length=1)
    hub: str | None = None
    address: dict[str, str]

    @model_validator(mode="after")
    def _check(self) -> Peers:
        for name in self.everyone:
            if not name.replace("-", "").replace("_", "").isalnum() or name == "ca":
                raise ValueError(f"{name!r}: a name of letters, digits, - and _ was expected; rename that party")
        if len(set(self.parties)) < len(self.parties):
            raise ValueError("active, passives: different names were expected, one occurs twice; correct it")
        for name, address in self.address.items():
            if name not in self.everyone:
                raise ValueError(f"address.{name}: is no party here; remove it or name it in passives")
            split_address(name, address)
        for (one, here), (other, there) in combinations(self.address.items(), 2):
            if here == there:
                raise ValueError(f"address: {one} and {other} have the same, {here}; give each a port of its own")
        if self.hub is not None and self.hub not in self.address:
            raise ValueError(f"address.{self.hub}: the hub's address is missing; add it as host:port")
        if self.hub is None:
            for one, other in combinations(self.parties, 2):
                if one not in self.address and other not in self.address:
                    raise ValueError(f"address: neither {one} nor {other} has one; add one of them, or a hub")
        return self

    @property
    def parties(self) -> tuple[str, ...]:
        """Everyone who trains, the active party first."""
        return (self.active, *self.passives)

    @property
    def everyone(self) -> tuple[str, ...]:
        """The parties, and the hub where it is a relay of its own."""
        return self.parties if self.hub is None or self.hub in self.parties else (*self.parties, self.hub)

    def neighbours(self, me: str) -> tuple[str, ...]:
        """Who has a line to `me`."""
        if self.hub is None or me == self.hub:
            return tuple(name for name in self.parties if name != me)
        return (self.hub,)

    def calls(self, me: str, peer: str) -> bool:
        """Whether of these neighbours `me` is the one that calls."""
        if self.hub is not None:
            return me != self.hub
        return peer in self.address and (me not in self.address or me < peer)

    def listens(self, me: str) -> bool:
        """Whether anyone calls `me`."""
        return any(not self.calls(me, peer) for peer in self.neighbours(me))

    def is_relayed(self, me: str, peer: str) -> bool:
        """Whether what the two say passes through somebody else."""
        return peer not in self.neighbours(me)

    @classmethod
    def load(cls, path: str | Path) -> Peers:
        """Load the peers from a TOML file. Raises ConfigError, with one line for each problem."""
        try:
            keys = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as cause:
            raise ConfigError(
                f"{path}: a file of peers was expected there ({cause.strerror}); check the path"
            ) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as cause:
            raise ConfigError(f"{path}: TOML was expected; {cause}; correct it") from None
        return cls(**keys)


def split_address(name: str, address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[v6]:port`. ValueError names whose address it is."""
    host, _, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        ipaddress.IPv6Address(host)
    elif ":" in host:
        host = ""
    if not host or "/" in host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"address.{name}: host:port was expected; write it as in bank.example.org:7300")
    return host, int(port)
