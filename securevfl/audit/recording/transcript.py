"""Runs that keep what every role received, beside what went into the protocol.

A `ProtocolRecord` stands at each party's side of a protocol: it notes what the party put in and what came out, which no
message shows. The checker holds messages against both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from securevfl.audit.recording.protocol_record import LearnedGradient, ProtocolRecord
from securevfl.base.arrays import Floats
from securevfl.base.roles import Roles
from securevfl.protocols.declarations import MessageDeclaration
from securevfl.runtime.codec import Message
from securevfl.runtime.observer import Event


@dataclass(frozen=True)
class Transcript:
    """One run. `declared`: what its messages are said to reveal, in these roles. `secrets`: what none may show.

    rotates: keys change with the epoch. defended: a defence stands before every residual.
    """

    events: list[Event]
    roles: Roles
    declared: list[MessageDeclaration]
    protocol_record: ProtocolRecord
    secrets: dict[str, NDArray[Any]] = field(default_factory=dict)
    rotates: bool = False
    defended: bool = False

    @property
    def received(self) -> list[Event]:
        """Every message as its receiver saw it."""
        return [event for event in self.events if event.direction == "recv"]

    def declaration(self, event: Event) -> MessageDeclaration | None:
        """Return what is declared of a received message, first by the sum on its subchannel; None if nothing is."""
        casts = [
            cast for cast in self.protocol_record.casts.values() if cast.carries(event.subchannel, event.me, event.peer)
        ]
        for roles, declared in [*((cast.roles, cast.declared) for cast in casts), (self.roles, self.declared)]:
            for item in declared:
                between = item.sender in roles.roles_of(event.peer) and item.receiver in roles.roles_of(event.me)
                if between and item.message is type(event.message):
                    return item
        return None

    def role(self, name: str, subchannel: str) -> str:
        """Return the role of a party in the sum on a subchannel, or in the run."""
        casts = [cast.roles for cast in self.protocol_record.casts.values() if cast.carries(subchannel, name)]
        return [*casts, self.roles][0].role(name)

    def missed(self, name: str) -> Iterator[tuple[LearnedGradient, Floats]]:
        """Each gradient that a party learned, and how far it is from J^T g."""
        for learned in self.protocol_record.gradients[name]:
            first = self.protocol_record.before[learned.subchannel]
            g, _ = self.protocol_record.residuals[self.roles.lead][first + learned.exchange]
            yield learned, learned.gradient - learned.J.vjp(g)

    def messages(self) -> list[Message]:
        return [event.message for event in self.received]
