"""No residual: nothing goes down. For optimizers whose weights all sit where the sums end, as those of FDSKL do."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from securevfl.crypto.scheme import Floats
from securevfl.errors import ProtocolError
from securevfl.protocols.base import ActiveResidual, Agreement, Declared, PassiveResidual, Reply, ResidualProtocol, Seat


class NoResidual(ResidualProtocol):
    """Passive parties are told nothing."""

    name: ClassVar[str] = "none"

    def active(self, seat: Seat, agreement: Agreement) -> ActiveResidual:
        return NothingDown()

    def passive(self, seat: Seat, agreement: Agreement) -> PassiveResidual:
        return NothingComes()

    def declares(self) -> list[Declared]:
        return []

    @property
    def strength(self) -> str:
        return "none on the way down, where nothing is sent"


class NothingDown(ActiveResidual):
    def publish(self, g: Floats, *, epoch: int, to: Collection[str]) -> None:
        raise ProtocolError('no residual goes down in this job; set protocol.residual to "open" or an engine')


class NothingComes(PassiveResidual):
    def reply(self) -> Reply:
        raise ProtocolError('no residual goes down in this job; set protocol.residual to "open" or an engine')
