"""All messages of a run, with the inputs and outputs of its protocols and with its declaration.

The transcript checks compare the messages with the declaration and with the `ProtocolRecord`. J is the derivative of a
party's outputs by its weights, g a residual, the derivative of the loss by the outputs; J^T g is the party's gradient.
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
    """The transcript of one run.

    Attributes:
        events: all messages, as senders and as receivers saw them.
        roles: the roles of the parties.
        declared: declarations of what each message reveals.
        protocol_record: inputs and outputs of sums and residual protocols.
        secrets: values that no message may contain, by description.
        rotates: whether keys change in every epoch.
        defended: whether every residual passes through a defence.
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
        """All messages as their receivers saw them."""
        return [event for event in self.events if event.direction == "recv"]

    def declaration(self, event: Event) -> MessageDeclaration | None:
        """Return the declaration of a received message; None if it is not declared.

        If the message belongs to a sum, the sum's declarations take precedence over those of the run.
        """
        sessions = [
            session
            for session in self.protocol_record.sum_sessions.values()
            if session.carries(event.subchannel, event.me, event.peer)
        ]
        for roles, declared in [
            *((session.roles, session.declared) for session in sessions),
            (self.roles, self.declared),
        ]:
            for item in declared:
                between = item.sender in roles.roles_of(event.peer) and item.receiver in roles.roles_of(event.me)
                if between and item.message is type(event.message):
                    return item
        return None

    def role(self, name: str, subchannel: str) -> str:
        """Return the role of a party in the sum on a subchannel, or in the run."""
        sessions = self.protocol_record.sum_sessions.values()
        roles = [session.roles for session in sessions if session.carries(subchannel, name)]
        return [*roles, self.roles][0].role(name)

    def gradient_errors(self, name: str) -> Iterator[tuple[LearnedGradient, Floats]]:
        """Yield each gradient that a party learned, and its difference from J^T g."""
        for learned in self.protocol_record.gradients[name]:
            first = self.protocol_record.first_exchange[learned.subchannel]
            g, _ = self.protocol_record.residuals[self.roles.lead][first + learned.exchange]
            yield learned, learned.gradient - learned.J.vjp(g)

    def messages(self) -> list[Message]:
        """Return all messages that were received, in order."""
        return [event.message for event in self.received]
