"""Open residual: the active party sends the residual in the clear (FedBCD 2019, Algorithm 1).

The active party has the labels. The residual g (n, c) is the derivative of the loss by the model's outputs f (n, c) for
the n rows of a batch. A passive party has only columns. It computes its gradient with the derivatives J of its outputs
by its parameters.

1. active -> passive   g      in the clear
   passive             J^T g

A passive party learns g. The sign of g reveals the label of a row, and the label and g reveal f. By subtracting its
outputs from f, the passive party obtains the sum of all other parties' outputs. Over a run, these sums span the columns
of those parties (the leak `columns`). This protocol hides very little; it is the baseline for encrypted residuals. A
`defence` (see `securevfl.protocols.residuals.defences`) adds noise to g before it is sent. An exchange is one residual
with all uses of it.
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
    """The residual g (n, c) of one batch, with its number `exchange`, counted from 0."""

    exchange: int
    g: Numbers


class OpenResidual(ResidualProtocol):
    """Residuals in the clear: passive parties learn the labels, unless a `defence` adds noise."""

    name: ClassVar[str] = "open"
    defence: AnyDefence | None = None
    """The noise or rounding that is applied to g before it is sent."""

    def active(self, context: PartyContext, agreement: Agreement) -> ActiveResidual:
        """Create the object by which the active party takes part in the protocol."""
        return OpenActive(context, agreement, self.defence)

    def passive(self, context: PartyContext, agreement: Agreement) -> PassiveResidual:
        """Create the object by which a passive party takes part in the protocol."""
        return OpenPassive(context)

    def declares(self) -> list[MessageDeclaration]:
        """Declare sender, receiver and disclosure of each message."""
        what = "g of every row, and so the labels and f; the values of f in a run span the columns of all other parties"
        if self.defence is not None:
            what = f"g of every row with noise ({self.defence.name}: {self.defence.guarantee})"
        return [MessageDeclaration(Residual, ACTIVE, PASSIVE, Reveal("plain", what))]

    @property
    def passive_view(self) -> str:
        """A few words for documents that describe which numbers a passive party learns."""
        if self.defence is not None:
            return f"g of every row of every batch, with fresh noise in each iteration ({self.defence.guarantee})"
        return "g of every row of every batch: its sign is the label"

    @property
    def strength(self) -> str:
        """One line of text: nothing is encrypted; only the noise of the defence, if any, protects labels."""
        return "none: g is sent in the clear" if self.defence is None else f"none: {self.defence.name} noise alone"


class OpenActive(ActiveResidual):
    """The role of the active party, which sends residuals.

    Args:
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
        agreement: the largest number of gradients per residual, and the format of g in messages.
        defence: noise or rounding that is applied to g before it is sent, if any.
    """

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
        """Send g; see `ActiveResidual.publish`."""
        if self._defence is not None:
            g = self._defence.apply(g, self._noise.take(None if resend_of is None else resend_of.number))
        exchange, rounded = next(self._exchanges), to_wire_floats(g, self._reals.bits)
        for passive in to:
            record = self._agreement.record(passive, g.size, self._channel.me)
            permit = self._channel.permit(replace(record, bits=self._reals.bits))
            self._channel.send(passive, Residual(exchange, rounded), self._subchannel, permit=permit)  # step 1


class OpenPassive(PassiveResidual):
    """The role of a passive party, which receives residuals."""

    def __init__(self, context: PartyContext) -> None:
        super().__init__(context)
        self._subchannel = f"{context.subchannel}/residual"
        self._latest = -1  # the number of the latest residual

    def receive(self) -> Reply:
        """Receive the next residual. Raise ProtocolError if its number is not larger than that of the one before."""
        residual = self.context.channel.recv(self.context.active, Residual, self._subchannel)  # step 1
        if residual.exchange <= self._latest:
            raise ProtocolError(
                f"{self.context.me}: {self.context.active} sent residual {residual.exchange} after residual "
                f"{self._latest}",
                code="SVFL-PROTOCOL-VALUES",
                party=self.context.active,
            )
        self._latest = residual.exchange
        check_bits(self.context.active, residual.g, self.context.reals.bits)
        return OpenReply(residual.exchange, np.asarray(residual.g, np.float64), self.context)


class OpenReply(Reply):
    """A residual in the clear at a passive party, which can compute any number of gradients from it."""

    def __init__(self, exchange: int, g: Floats, context: PartyContext) -> None:
        self.exchange = exchange
        self._g = g
        self._context = context

    def gradient(self, model: Differentiable, batch: Batch) -> Floats:
        """Return the gradient J^T g. Raise ProtocolError if g does not fit the batch or is not finite."""
        shape = model.rows(batch.X), self._context.outputs
        if self._g.shape != shape or not np.isfinite(self._g).all():
            raise ProtocolError(
                f"{self._context.me}: the residuals of {self._context.active} have shape {self._g.shape} instead of "
                f"{shape}, or are not finite",
                code="SVFL-PROTOCOL-VALUES",
                party=self._context.active,
            )
        return model.vjp(batch.X, self._g)
