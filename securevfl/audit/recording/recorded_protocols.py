"""Wrappers of sums and residual protocols that record inputs and outputs at every party.

The wrapped protocol is called the inner protocol. A sum protocol adds the parties' outputs, its summands, for one of
them. In a residual protocol the party with labels (the active one) publishes residuals, the derivatives of the loss by
the outputs, and each passive party learns its gradient. An exchange is one residual with all requests about it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import PrivateAttr, SerializeAsAny

from securevfl.audit.recording.protocol_record import LearnedGradient, ProtocolRecord, SumRecord, SumSession
from securevfl.base.arrays import Floats
from securevfl.protocols.declarations import MessageDeclaration
from securevfl.protocols.differentiable import Differentiable
from securevfl.protocols.message_protocol import Release
from securevfl.protocols.number_spaces import Phases, Space
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.residuals.base import (
    ActiveResidual,
    Agreement,
    Batch,
    PassiveResidual,
    Reply,
    ResidualProtocol,
)
from securevfl.protocols.sums.base import SumProtocol, SumRole

W = TypeVar("W", "RecordedSum", "RecordedResidual")


def recorded(kind: type[W], inner: Any, record: ProtocolRecord) -> W:
    """Return a protocol that runs `inner` and records it.

    Args:
        kind: `RecordedSum` or `RecordedResidual`.
        inner: the protocol to run.
        record: the record to which inputs and outputs are added.

    Returns:
        The recording protocol.
    """
    protocol = kind(inner=inner)
    protocol._record = record
    return protocol


class RecordedSum(SumProtocol):
    """A wrapper of a sum protocol that records its inputs and outputs at every party."""

    name: ClassVar[str] = "recorded"
    is_recorder: ClassVar[bool] = True
    inner: SerializeAsAny[SumProtocol]
    _record: ProtocolRecord = PrivateAttr(default_factory=ProtocolRecord)

    def role(self, context: PartyContext) -> SumRole:
        """Return the inner protocol's role for a party, with a recorder."""
        self._record.sessions.add(context.channel.session)
        record = self._record.sums.setdefault(context.collector, SumRecord())
        self._record.sum_sessions[context.collector] = SumSession(
            context.subchannel, context.roles, self.inner.declares(context.contributors)
        )
        return RecordedSumRole(self.inner.role(context), context.me, record)

    def declares(self, passives: Sequence[str]) -> list[MessageDeclaration]:
        """Return the messages that the inner protocol declares."""
        return self.inner.declares(passives)

    def coalitions(self, parties: Sequence[str]) -> dict[str, frozenset[str]]:
        """Return the inner protocol's coalitions."""
        return self.inner.coalitions(parties)

    @property
    def hides_parts(self) -> bool:
        """Whether the inner protocol hides the summands."""
        return self.inner.hides_parts


class RecordedSumRole(SumRole):
    """One party's role in a sum, which records summands and totals."""

    def __init__(self, inner: SumRole, me: str, record: SumRecord) -> None:
        self._inner, self._me, self._record = inner, me, record

    def contribute(self, values: Floats | Phases, space: Space) -> None:
        """Record this party's summand, and contribute it to the inner protocol's sum."""
        self._record.parts[self._me].append(np.array(values))
        self._inner.contribute(values, space)

    def collect(self, shape: tuple[int, ...], space: Space) -> NDArray[Any]:
        """Collect the total by the inner protocol, and record it."""
        total = self._inner.collect(shape, space)
        self._record.spaces.append(space)
        self._record.totals.append(np.array(total))
        return total


class RecordedResidual(ResidualProtocol):
    """A wrapper of a residual protocol that records residuals and gradients at every party."""

    name: ClassVar[str] = "recorded"
    inner: SerializeAsAny[ResidualProtocol]
    _record: ProtocolRecord = PrivateAttr(default_factory=ProtocolRecord)

    def active(self, context: PartyContext, agreement: Agreement) -> ActiveResidual:
        """Return the inner protocol's active role, with a recorder."""
        self._record.first_exchange[context.subchannel] = len(self._record.residuals[context.me])
        return RecordedActive(self.inner.active(context, agreement), context.me, self._record)

    def passive(self, context: PartyContext, agreement: Agreement) -> PassiveResidual:
        """Return the inner protocol's passive role, with a recorder."""
        return RecordedPassive(self.inner.passive(context, agreement), context, self._record)

    def declares(self) -> list[MessageDeclaration]:
        """Return the messages that the inner protocol declares."""
        return self.inner.declares()

    @property
    def strength(self) -> str:
        """The inner protocol's security level."""
        return self.inner.strength

    def counted_bits(self, rows: int, counts: int, word: int) -> int:
        """Return the inner protocol's number of disclosed bits."""
        return self.inner.counted_bits(rows, counts, word)

    @property
    def seals(self) -> bool:
        """Whether the inner protocol encrypts residuals."""
        return self.inner.seals


class RecordedActive(ActiveResidual):
    """The active role of a residual protocol, which records published residuals."""

    def __init__(self, inner: ActiveResidual, me: str, record: ProtocolRecord) -> None:
        self._inner, self._me, self._record = inner, me, record

    def publish(self, g: Floats, *, epoch: int, to: Collection[str], resend_of: Release | None = None) -> None:
        """Record the residual g that the inner protocol publishes, and let it publish g."""
        self._record.residuals[self._me].append((np.array(g), tuple(to)))
        self._record.epochs.add(epoch)
        self._inner.publish(g, epoch=epoch, to=to, resend_of=resend_of)

    def close(self) -> None:
        """Release the resources of this party's role in the inner protocol."""
        self._inner.close()


class RecordedPassive(PassiveResidual):
    """The passive role of a residual protocol, which records learned gradients."""

    def __init__(self, inner: PassiveResidual, context: PartyContext, record: ProtocolRecord) -> None:
        super().__init__(context)
        self._inner, self._record = inner, record

    def receive(self) -> Reply:
        """Receive a published residual by the inner protocol; return the exchange, wrapped in a recorder."""
        return RecordedReply(self._inner.receive(), self.context, self._record)

    def close(self) -> None:
        """Release the resources of this party's role in the inner protocol."""
        self._inner.close()


class RecordedReply(Reply):
    """A wrapper of one exchange of a passive party that records the gradients that the party learns."""

    def __init__(self, inner: Reply, context: PartyContext, record: ProtocolRecord) -> None:
        self._inner, self._context, self._record = inner, context, record
        self.exchange = inner.exchange
        self._learned: LearnedGradient | None = None

    def gradient(self, model: Differentiable, batch: Batch) -> Floats:
        """Learn the gradient by the inner protocol and record it."""
        gradient = self._inner.gradient(model, batch)
        if self._learned is None or not model.static_jacobian:
            self._learned = LearnedGradient(
                self._context.subchannel, self.exchange, model.jacobian(batch.X), np.array(gradient)
            )
            self._record.gradients[self._context.me].append(self._learned)
        return gradient

    def repeat(self) -> None:
        """Repeat the exchange and record its gradient again."""
        assert self._learned is not None, "a gradient was opened before"
        self._inner.repeat()
        self._record.gradients[self._context.me].append(self._learned)

    def close(self) -> None:
        """Release the resources of this exchange of the inner protocol."""
        self._inner.close()
