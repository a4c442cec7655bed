"""Open residual: g in the clear, as FedBCD publishes it (FedBCD 2019, Algorithm 1).

1. active -> passive   g      in the clear
   passive             J^T g

A passive party sees g (n x c). Its sign is the label, and label and g give f: less its own part, that is the sum of all
other parties' parts, the active party's among them, and over a run the space of their columns (the leak `columns`).
This hides very little. It is the yardstick that the sealed residuals are measured against. A `defence` (see
`securevfl.protocols.residuals.defences`) blurs g before it goes.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import replace
from typing import ClassVar

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.roles import ACTIVE, PASSIVE
from securevfl.errors import ProtocolError
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.differentiable import Differentiable
from securevfl.protocols.message_protocol import Release
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.residuals.base import (
    ActiveResidual,
    Agreement,
    Batch,
    PassiveResidual,
    Reply,
    ResidualProtocol,
)
from securevfl.protocols.residuals.defences import AnyDefence, Defence, Noise
from securevfl.runtime.codec import Numbers, check_bits, to_wire_floats
from securevfl.runtime.disclosure_gate import DisclosingMessage


class Residual(DisclosingMessage, frozen=True):
    """g (n x c) of an exchange."""

    exchange: int
    g: Numbers


class OpenResidual(ResidualProtocol):
    """g in the clear: passive parties see the labels, unless a `defence` blurs them."""

    name: ClassVar[str] = "open"
    defence: AnyDefence | None = None
    """What blurs g before it goes down."""

    def active(self, context: PartyContext, agreement: Agreement) -> ActiveResidual:
        return OpenActive(context, agreement, self.defence)

    def passive(self, context: PartyContext, agreement: Agreement) -> PassiveResidual:
        return OpenPassive(context)

    def declares(self) -> list[MessageDeclaration]:
        what = "g of every row, and so the labels and f, which over a run spans the columns of all other parties"
        if self.defence is not None:
            what = f"g of every row, blurred ({self.defence.name}: {self.defence.promise})"
        return [MessageDeclaration(Residual, ACTIVE, PASSIVE, Reveal("plain", what))]

    @property
    def passive_view(self) -> str:
        if self.defence is not None:
            return f"g of every row of every batch, blurred once a visit ({self.defence.promise})"
        return "g of every row of every batch: its sign is the label"

    @property
    def strength(self) -> str:
        return "none: g is sent in the clear" if self.defence is None else f"none: {self.defence.name} noise alone"


class OpenActive(ActiveResidual):
    def __init__(self, context: PartyContext, agreement: Agreement, defence: Defence | None) -> None:
        if defence is not None:
            defence.check(context.outputs)
        self._agreement = agreement
        self._reals = context.reals
        self._channel = context.channel
        self._subchannel = f"{context.subchannel}/residual"
        self._defence = defence
        self._noise = Noise(context.noise_key, context.subchannel, context.residuals_sent)
        self._exchanges = itertools.count()

    def publish(self, g: Floats, *, epoch: int, to: Collection[str], resend_of: Release | None = None) -> None:
        if self._defence is not None:
            g = self._defence.apply(g, self._noise.take(None if resend_of is None else resend_of.number))
        exchange, sent = next(self._exchanges), to_wire_floats(g, self._reals.bits)
        for passive in to:
            entry = self._agreement.record(passive, g.size, self._channel.me)
            permit = self._channel.permit(replace(entry, bits=self._reals.bits))
            self._channel.send(passive, Residual(exchange, sent), self._subchannel, permit=permit)  # 1


class OpenPassive(PassiveResidual):
    def __init__(self, context: PartyContext) -> None:
        super().__init__(context)
        self._subchannel = f"{context.subchannel}/residual"

    def receive(self) -> Reply:
        residual = self.context.channel.recv(self.context.active, Residual, self._subchannel)  # 1
        check_bits(self.context.active, residual.g, self.context.reals.bits)
        return OpenReply(residual.exchange, np.asarray(residual.g, np.float64), self.context)


class OpenReply(Reply):
    """g itself, which answers whenever and as often as it is asked."""

    def __init__(self, exchange: int, g: Floats, context: PartyContext) -> None:
        self.exchange = exchange
        self._g = g
        self._context = context

    def gradient(self, model: Differentiable, batch: Batch) -> Floats:
        shape = model.rows(batch.X), self._context.outputs
        if self._g.shape != shape or not np.isfinite(self._g).all():
            raise ProtocolError(
                f"{self._context.me}: {self._context.active} was expected to send {shape} finite residuals, others "
                "came "
                f"({self._g.shape}); ask it why"
            )
        return model.vjp(batch.X, self._g)
