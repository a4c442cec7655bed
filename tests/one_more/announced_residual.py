"""Another residual: g in the clear, after a message that says of how many rows.

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
from securevfl.protocols.declared import Declared, Release, Reveal
from securevfl.protocols.residuals.base import ActiveResidual, Agreement, PassiveResidual, Reply, ResidualProtocol
from securevfl.protocols.residuals.open_residual import OpenReply
from securevfl.protocols.seat import Seat
from securevfl.runtime.channel import Telling
from securevfl.runtime.codec import Message


class Announced(Message, frozen=True):
    """How many rows the residual of an exchange has."""

    exchange: int
    rows: int


class AnnouncedG(Telling, frozen=True):
    """g (n x c)."""

    g: NDArray[np.float64]


class AnnouncedResidual(ResidualProtocol):
    """g in the clear, announced by its number of rows."""

    name: ClassVar[str] = "announced"

    @property
    def strength(self) -> str:
        return "none: g is sent in the clear"

    def active(self, seat: Seat, agreement: Agreement) -> ActiveResidual:
        return AnnouncedActive(seat, agreement)

    def passive(self, seat: Seat, agreement: Agreement) -> PassiveResidual:
        return AnnouncedPassive(seat)

    def declares(self) -> list[Declared]:
        return [
            Declared(Announced, ACTIVE, PASSIVE, Reveal("public")),
            Declared(AnnouncedG, ACTIVE, PASSIVE, Reveal("plain", "g of every row, and so the labels")),
        ]


class AnnouncedActive(ActiveResidual):
    """The side that has g."""

    def __init__(self, seat: Seat, agreement: Agreement) -> None:
        self._seat, self._agreement = seat, agreement
        self._exchange = 0

    def publish(self, g: Floats, *, epoch: int, to: Collection[str], again: Release | None = None) -> None:
        channel, lane = self._seat.channel, self._seat.lane + "/residual"
        for passive in to:
            channel.send(passive, Announced(self._exchange, len(g)), lane)  # 1
            told = channel.tell(self._agreement.entry(passive, g.size, channel.me))
            channel.send(passive, AnnouncedG(g), lane, told=told)  # 2
        self._exchange += 1


class AnnouncedPassive(PassiveResidual):
    """The side that multiplies g by its own J."""

    def receive(self) -> Reply:
        channel, lane, active = self.seat.channel, self.seat.lane + "/residual", self.seat.active
        announced = channel.recv(active, Announced, lane)  # 1
        g = channel.recv(active, AnnouncedG, lane).g  # 2
        if len(g) != announced.rows:
            raise ProtocolError(f"{active}: {announced.rows} rows of g were announced, {len(g)} came")
        return OpenReply(announced.exchange, g, self.seat)
