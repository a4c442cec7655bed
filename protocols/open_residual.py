"""Open residual: g in the clear, as FedBCD publishes it (FedBCD 2019, Algorithm 1).

1. active -> passive   g      in the clear
   passive             J^T g

A passive party sees g (n x c). Its sign is the label, and label and g give f: less its own part, that is the sum of all
other parties' parts, the active party's among them, and over a run the space of their columns (the leak `columns`).
This hides very little. It is the yardstick that the sealed residuals are measured against. A `defence` (see
`securevfl.protocols.defences`) blurs g before it goes.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.scheme import Floats
from securevfl.protocols.base import (
    ActiveResidual,
    Agreement,
    Batch,
    Declared,
    PassiveResidual,
    Reply,
    ResidualProtocol,
    Reveal,
    Seat,
)
from securevfl.protocols.defences import AnyDefence, Defence, Noise
from securevfl.protocols.differentiable import Differentiable
from securevfl.roles import ACTIVE, PASSIVE
from securevfl.runtime.codec import Message


class Residual(Message, frozen=True):
    """g (n x c) of an exchange."""

    exchange: int
    g: NDArray[np.float64]


class OpenResidual(ResidualProtocol):
    """g in the clear: passive parties see the labels, unless a `defence` blurs them."""

    name: ClassVar[str] = "open"
    defence: AnyDefence | None = None
    """What blurs g before it goes down."""

    def active(self, seat: Seat, agreement: Agreement) -> ActiveResidual:
        return OpenActive(seat, self.defence)

    def passive(self, seat: Seat, agreement: Agreement) -> PassiveResidual:
        return OpenPassive(seat)

    def declares(self) -> list[Declared]:
        what = "g of every row, and so the labels and f, which over a run spans the columns of all other parties"
        if self.defence is not None:
            what = f"g of every row, blurred ({self.defence.name}: {self.defence.promise})"
        return [Declared(Residual, ACTIVE, PASSIVE, Reveal("plain", what))]

    @property
    def shows(self) -> str:
        if self.defence is not None:
            return f"g of every row of every batch, blurred once a visit ({self.defence.promise})"
        return "g of every row of every batch: its sign is the label"

    @property
    def strength(self) -> str:
        return "none: g is sent in the clear" if self.defence is None else f"none: {self.defence.name} noise alone"


class OpenActive(ActiveResidual):
    def __init__(self, seat: Seat, defence: Defence | None) -> None:
        if defence is not None:
            defence.check(seat.outputs)
        self._channel = seat.channel
        self._lane = f"{seat.lane}/residual"
        self._defence = defence
        self._noise = Noise(seat.noise, seat.lane, seat.released)
        self._exchanges = itertools.count()

    def publish(self, g: Floats, *, epoch: int, to: Collection[str], again: int | None = None) -> None:
        if self._defence is not None:
            g = self._defence.apply(g, self._noise.take(again))
        exchange = next(self._exchanges)
        for passive in to:
            self._channel.send(passive, Residual(exchange, g), self._lane)  # 1


class OpenPassive(PassiveResidual):
    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._lane = f"{seat.lane}/residual"

    def reply(self) -> Reply:
        residual = self._seat.channel.recv(self._seat.active, Residual, self._lane)  # 1
        return OpenReply(residual.exchange, residual.g)


class OpenReply(Reply):
    """g itself, which answers whenever and as often as it is asked."""

    def __init__(self, exchange: int, g: Floats) -> None:
        self.exchange = exchange
        self._g = g

    def gradient(self, model: Differentiable, batch: Batch) -> Floats:
        return model.vjp(batch.X, self._g)
