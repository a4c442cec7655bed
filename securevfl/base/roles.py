"""What each party is in a run, as data: a role is a word, and who has it is a table that all parties share.

A protocol speaks of roles, never of parties: a sum has a collector and contributors, a residual an active party and
passive ones. A method says which of its parties plays which part in which protocol (`Roles.sum`, `declare_in_roles`),
so that a
new role (a server, a holder of keys, a helper) is a new word in the method's own file and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from securevfl.errors import ProtocolError

Role = str

ACTIVE: Role = "active"  # has labels
PASSIVE: Role = "passive"  # has columns and no labels
SERVER: Role = "server"  # has no table; stands between the others
PARTNER: Role = "partner"  # has columns and no labels, and holds shares beside the active party

LEAD: Role = "lead"  # comes first, whatever it is beside: keeps the history and says when to stop
COLLECTOR: Role = "collector"  # of a sum: is told it
CONTRIBUTOR: Role = "contributor"  # of a sum: puts a part in
READER: Role = "reader"  # of a stored sum: a contributor that is told it


@dataclass(frozen=True)
class Roles:
    """Who is what: (party, role) in an order that all parties share; who comes first leads."""

    cast: tuple[tuple[str, Role], ...]

    @classmethod
    def of(cls, cast: Mapping[str, Role] | Iterable[tuple[str, Role]]) -> Roles:
        """Make the roles from a table or pairs, in their order."""
        return cls(tuple(cast.items() if isinstance(cast, Mapping) else cast))

    @classmethod
    def sum(cls, collector: str, contributors: Iterable[str]) -> Roles:
        """Make the roles of a sum: one party that collects it and those that contribute."""
        return cls(((collector, COLLECTOR), *((name, CONTRIBUTOR) for name in contributors)))

    @classmethod
    def labelled(cls, active: str, passives: Iterable[str]) -> Roles:
        """Make the roles of one party with labels and others without."""
        return cls(((active, ACTIVE), *((name, PASSIVE) for name in passives)))

    @property
    def parties(self) -> tuple[str, ...]:
        """The names of all parties of the run, in order."""
        return tuple(name for name, _ in self.cast)

    @property
    def lead(self) -> str:
        """The name of the party that comes first in the order."""
        return self.cast[0][0]

    def roles_of(self, party: str) -> tuple[Role, ...]:
        """All that this party is: its role, and LEAD if it leads."""
        return (self.role(party), LEAD) if party == self.lead else (self.role(party),)

    @property
    def kinds(self) -> tuple[Role, ...]:
        """The roles that occur, each once, in order."""
        return tuple(dict.fromkeys(role for _, role in self.cast))

    def role(self, party: str) -> Role:
        """Return the role of this party. ProtocolError if it is no party of the run."""
        for name, role in self.cast:
            if name == party:
                return role
        raise ProtocolError(f"one of {', '.join(self.parties)} was expected, {party} came; correct the party's name")

    def with_role(self, role: Role) -> tuple[str, ...]:
        """List the parties of this role, in order; there may be none."""
        return tuple(name for name, own in self.cast if own == role)

    def only(self, role: Role) -> str:
        """Return the only party of this role. ProtocolError if there is none, or another one."""
        found = self.with_role(role)
        if len(found) != 1:
            who = ", ".join(found) or "none"
            raise ProtocolError(f"exactly one {role} party was expected, there is {who}; correct the roles")
        return found[0]

    def others(self, party: str) -> tuple[str, ...]:
        """Everyone but this party, in order."""
        return tuple(name for name in self.parties if name != party)

    def pairs(self) -> list[tuple[Role, Role]]:
        """(sender, receiver) of every message that may pass between two different parties, as roles, each once."""
        return list(dict.fromkeys((one, other) for a, one in self.cast for b, other in self.cast if a != b))

    def may_send(self, sender: Role, receiver: Role) -> bool:
        """Whether a message from this role to that one may pass between two different parties."""
        return any(
            sender in self.roles_of(one) and receiver in self.roles_of(other)
            for one in self.parties
            for other in self.others(one)
        )
