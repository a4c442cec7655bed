"""The roles of the parties in a run, as data that all parties share.

A protocol refers to roles and never to names of parties. For example, the protocols for sums have a collector and
contributors, and the protocols that send residuals have an active party and passive parties. A protocol family assigns
the roles of each protocol to its parties (`Roles.sum`, `declare_in_roles`). A new role, such as a server or a helper,
is a new string in the file of its protocol family.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from securevfl.errors import ProtocolError

Role = str

ACTIVE: Role = "active"
"""The party that has the labels, and may have columns."""
PASSIVE: Role = "passive"
"""A party that has columns and no labels."""
SERVER: Role = "server"
"""A party without a table that relays or adds messages of the others."""
PARTNER: Role = "partner"
"""A party that has columns and no labels, and holds secret shares together with the active party."""

LEAD: Role = "lead"
"""The first party's additional role: it stores the history of the training and decides when to stop."""
COLLECTOR: Role = "collector"
"""A party that receives a sum."""
CONTRIBUTOR: Role = "contributor"
"""A party that adds a summand to a sum."""
READER: Role = "reader"
"""A party that contributes to a stored sum and receives it."""


@dataclass(frozen=True)
class Roles:
    """The role of every party of a run.

    Attributes:
        cast: pairs (party, role) in an order that is the same at all parties; the first party leads.
    """

    cast: tuple[tuple[str, Role], ...]

    @classmethod
    def of(cls, cast: Mapping[str, Role] | Iterable[tuple[str, Role]]) -> Roles:
        """Create roles from a mapping or from (party, role) pairs; their order is kept."""
        return cls(tuple(cast.items() if isinstance(cast, Mapping) else cast))

    @classmethod
    def sum(cls, collector: str, contributors: Iterable[str]) -> Roles:
        """Return the roles of a sum with one collector."""
        return cls(((collector, COLLECTOR), *((name, CONTRIBUTOR) for name in contributors)))

    @classmethod
    def labelled(cls, active: str, passives: Iterable[str]) -> Roles:
        """Return the roles of one party with labels and of parties without labels."""
        return cls(((active, ACTIVE), *((name, PASSIVE) for name in passives)))

    @property
    def parties(self) -> tuple[str, ...]:
        """The names of all parties, in order."""
        return tuple(name for name, _ in self.cast)

    @property
    def lead(self) -> str:
        """The name of the first party."""
        return self.cast[0][0]

    def roles_of(self, party: str) -> tuple[Role, ...]:
        """Return a tuple with the role of a party, followed by LEAD if the party is the first one."""
        return (self.role(party), LEAD) if party == self.lead else (self.role(party),)

    @property
    def kinds(self) -> tuple[Role, ...]:
        """The roles that occur, each once, in order."""
        return tuple(dict.fromkeys(role for _, role in self.cast))

    def role(self, party: str) -> Role:
        """Return the role of a party.

        Args:
            party: name of the party.

        Returns:
            Its role.

        Raises:
            ProtocolError: if there is no party of this name.
        """
        for name, role in self.cast:
            if name == party:
                return role
        raise ProtocolError(
            f"{party} is not a party of this run; the parties are {', '.join(self.parties)}",
            "correct the name of the party",
            code="SVFL-PROTOCOL-MESSAGE",
            party=party,
        )

    def with_role(self, role: Role) -> tuple[str, ...]:
        """Return the parties of a role, in order; there may be none."""
        return tuple(name for name, other in self.cast if other == role)

    def only(self, role: Role) -> str:
        """Return the only party of a role.

        Args:
            role: name of the role.

        Returns:
            Name of the party.

        Raises:
            ProtocolError: if no party or several parties have the role.
        """
        parties = self.with_role(role)
        if len(parties) != 1:
            raise ProtocolError(
                f"exactly one party must have the role {role}, but {', '.join(parties) or 'none'} has it",
                f"start the run with one party in the role {role}; a party's role follows from its table and its "
                "labels",
                code="SVFL-PARTIES-ROLE",
                role=role,
            )
        return parties[0]

    def others(self, party: str) -> tuple[str, ...]:
        """Return all parties except one, in order."""
        return tuple(name for name in self.parties if name != party)

    def pairs(self) -> list[tuple[Role, Role]]:
        """Return all pairs (sender's role, receiver's role) of two different parties, each pair once."""
        return list(dict.fromkeys((one, other) for a, one in self.cast for b, other in self.cast if a != b))

    def may_send(self, sender: Role, receiver: Role) -> bool:
        """Return whether two different parties of the run have these roles."""
        return any(
            sender in self.roles_of(one) and receiver in self.roles_of(other)
            for one in self.parties
            for other in self.others(one)
        )
