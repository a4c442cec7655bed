"""Sum and residual protocols that record their inputs and outputs at every party."""

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


def witnessed(kind: type[W], inner: Any, witness: ProtocolRecord) -> W:
    """Return a protocol with this witness at every context."""
    protocol = kind(inner=inner)
    protocol._witness = witness
    return protocol


class RecordedSum(SumProtocol):
    """Another sum with a witness at every context."""

    name: ClassVar[str] = "witnessed"
    inner: SerializeAsAny[SumProtocol]
    _witness: ProtocolRecord = PrivateAttr(default_factory=ProtocolRecord)

    def role(self, context: PartyContext) -> SumRole:
        self._witness.sessions.add(context.channel.session)
        summed = self._witness.sums.setdefault(context.collector, SumRecord())
        self._witness.casts[context.collector] = SumSession(
            context.subchannel, context.roles, self.inner.declares(context.contributors)
        )
        return RecordedSumRole(self.inner.role(context), context.me, summed)

    def declares(self, passives: Sequence[str]) -> list[MessageDeclaration]:
        return self.inner.declares(passives)

    def coalitions(self, parties: Sequence[str]) -> dict[str, frozenset[str]]:
        return self.inner.coalitions(parties)

    @property
    def hides_parts(self) -> bool:
        return self.inner.hides_parts


class RecordedSumRole(SumRole):
    def __init__(self, inner: SumRole, me: str, summed: SumRecord) -> None:
        self._inner, self._me, self._summed = inner, me, summed

    def contribute(self, values: Floats | Phases, space: Space) -> None:
        self._summed.parts[self._me].append(np.array(values))
        self._inner.contribute(values, space)

    def collect(self, shape: tuple[int, ...], space: Space) -> NDArray[Any]:
        total = self._inner.collect(shape, space)
        self._summed.spaces.append(space)
        self._summed.totals.append(np.array(total))
        return total


class RecordedResidual(ResidualProtocol):
    """Another residual with a witness at every context."""

    name: ClassVar[str] = "witnessed"
    inner: SerializeAsAny[ResidualProtocol]
    _witness: ProtocolRecord = PrivateAttr(default_factory=ProtocolRecord)

    def active(self, context: PartyContext, agreement: Agreement) -> ActiveResidual:
        self._witness.before[context.subchannel] = len(self._witness.residuals[context.me])
        return RecordedActive(self.inner.active(context, agreement), context.me, self._witness)

    def passive(self, context: PartyContext, agreement: Agreement) -> PassiveResidual:
        return RecordedPassive(self.inner.passive(context, agreement), context, self._witness)

    def declares(self) -> list[MessageDeclaration]:
        return self.inner.declares()

    @property
    def strength(self) -> str:
        return self.inner.strength

    def counted_bits(self, rows: int, counts: int, word: int) -> int:
        return self.inner.counted_bits(rows, counts, word)

    @property
    def seals(self) -> bool:
        return self.inner.seals


class RecordedActive(ActiveResidual):
    def __init__(self, inner: ActiveResidual, me: str, witness: ProtocolRecord) -> None:
        self._inner, self._me, self._witness = inner, me, witness

    def publish(self, g: Floats, *, epoch: int, to: Collection[str], resend_of: Release | None = None) -> None:
        self._witness.residuals[self._me].append((np.array(g), tuple(to)))
        self._witness.epochs.add(epoch)
        self._inner.publish(g, epoch=epoch, to=to, resend_of=resend_of)

    def close(self) -> None:
        self._inner.close()


class RecordedPassive(PassiveResidual):
    def __init__(self, inner: PassiveResidual, context: PartyContext, witness: ProtocolRecord) -> None:
        super().__init__(context)
        self._inner, self._witness = inner, witness

    def receive(self) -> Reply:
        return RecordedReply(self._inner.receive(), self.context, self._witness)

    def close(self) -> None:
        self._inner.close()


class RecordedReply(Reply):
    def __init__(self, inner: Reply, context: PartyContext, witness: ProtocolRecord) -> None:
        self._inner, self._context, self._witness = inner, context, witness
        self.exchange = inner.exchange
        self._last: LearnedGradient | None = None

    def gradient(self, model: Differentiable, batch: Batch) -> Floats:
        gradient = self._inner.gradient(model, batch)
        if self._last is None or not model.static_jacobian:
            self._last = LearnedGradient(
                self._context.subchannel, self.exchange, model.jacobian(batch.X), np.array(gradient)
            )
            self._witness.gradients[self._context.me].append(self._last)
        return gradient

    def repeat(self) -> None:
        assert self._last is not None, "it has asked before"
        self._inner.repeat()
        self._witness.gradients[self._context.me].append(self._last)

    def close(self) -> None:
        self._inner.close()
