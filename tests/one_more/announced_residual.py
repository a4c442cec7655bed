"""Another residual protocol: g in the clear, after a message with the number of rows.

1. active -> passive   how many rows come
2. active -> passive   g     in the clear
   passive             J^T g
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.roles import ACTIVE, PASSIVE
from securevfl.errors import ProtocolError
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.message_protocol import Release
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.residuals.base import ActiveResidual, Agreement, PassiveResidual, Reply, ResidualProtocol
from securevfl.protocols.residuals.open_residual import OpenReply
from securevfl.runtime.codec import Message
from securevfl.runtime.disclosure_gate import DisclosingMessage


class Announced(Message, frozen=True):
    """How many rows the residual of an exchange has."""

    exchange: int
    rows: int


class AnnouncedG(DisclosingMessage, frozen=True):
    """g (n x c)."""

    g: NDArray[np.float64]


class AnnouncedResidual(ResidualProtocol):
    """g in the clear, announced by its number of rows."""

    name: ClassVar[str] = "announced"

    @property
    def strength(self) -> str:
        return "none: g is sent in the clear"

    def active(self, context: PartyContext, agreement: Agreement) -> ActiveResidual:
        return AnnouncedActive(context, agreement)

    def passive(self, context: PartyContext, agreement: Agreement) -> PassiveResidual:
        return AnnouncedPassive(context)

    def declares(self) -> list[MessageDeclaration]:
        return [
            MessageDeclaration(Announced, ACTIVE, PASSIVE, Reveal("public")),
            MessageDeclaration(AnnouncedG, ACTIVE, PASSIVE, Reveal("plain", "g of every row, and so the labels")),
        ]


class AnnouncedActive(ActiveResidual):
    """The side that has g."""

    def __init__(self, context: PartyContext, agreement: Agreement) -> None:
        self._context, self._agreement = context, agreement
        self._exchange = 0

    def publish(self, g: Floats, *, epoch: int, to: Collection[str], resend_of: Release | None = None) -> None:
        channel, subchannel = self._context.channel, self._context.subchannel + "/residual"
        for passive in to:
            channel.send(passive, Announced(self._exchange, len(g)), subchannel)  # 1
            permit = channel.permit(self._agreement.record(passive, g.size, channel.me))
            channel.send(passive, AnnouncedG(g), subchannel, permit=permit)  # 2
        self._exchange += 1


class AnnouncedPassive(PassiveResidual):
    """The role that multiplies g by its Jacobian."""

    def receive(self) -> Reply:
        channel, subchannel, active = self.context.channel, self.context.subchannel + "/residual", self.context.active
        announced = channel.recv(active, Announced, subchannel)  # 1
        g = channel.recv(active, AnnouncedG, subchannel).g  # 2
        if len(g) != announced.rows:
            raise ProtocolError(f"{active}: received {len(g)} rows of g, expected {announced.rows}")
        return OpenReply(announced.exchange, g, self.context)
