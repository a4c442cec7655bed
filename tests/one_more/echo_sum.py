"""A sum in the clear that sends each contributor the number of summands received: one more sum, in one file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.roles import COLLECTOR, CONTRIBUTOR
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.number_spaces import Phases, Space
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.sums.base import SumProtocol, SumRole, permit_summand
from securevfl.protocols.sums.residue_sums import from_residues, pack, residue_type, to_residues, unpack
from securevfl.runtime.codec import Message
from securevfl.runtime.disclosure_gate import DisclosingMessage


class EchoPart(DisclosingMessage, frozen=True):
    """A part as residues, in the clear."""

    residues: bytes


class Heard(Message, frozen=True):
    """How many parts have come."""

    count: int


class EchoSum(SumProtocol):
    """Parts in the clear, and an answer."""

    name: ClassVar[str] = "echo"

    @property
    def strength(self) -> str:
        return "none: parts are sent in the clear, in another form"

    def role(self, context: PartyContext) -> SumRole:
        return EchoRole(context)

    def declares(self, contributors: Sequence[str]) -> list[MessageDeclaration]:
        return [
            MessageDeclaration(EchoPart, CONTRIBUTOR, COLLECTOR, Reveal("plain", "the sender's part")),
            MessageDeclaration(Heard, COLLECTOR, CONTRIBUTOR, Reveal("public")),
        ]

    def coalitions(self, parties: Sequence[str]) -> dict[str, frozenset[str]]:
        return {name: frozenset(parties[:1]) for name in parties[1:]}

    @property
    def hides_parts(self) -> bool:
        return False


class EchoRole(SumRole):
    """Either side."""

    def __init__(self, context: PartyContext) -> None:
        self._context = context

    def contribute(self, values: Floats | Phases, space: Space) -> None:
        permit = permit_summand(self._context, values, space, (self._context.me,))
        part = to_residues(values, space, len(self._context.contributors))
        self._context.channel.send(
            self._context.collector, EchoPart(pack(part)), self._context.subchannel, permit=permit
        )
        self._context.channel.recv(self._context.collector, Heard, self._context.subchannel)

    def collect(self, shape: tuple[int, ...], space: Space) -> NDArray[Any]:
        channel, names = self._context.channel, self._context.contributors
        total = np.zeros(shape, residue_type(space))
        for name in names:
            total += unpack(channel.recv(name, EchoPart, self._context.subchannel).residues, shape, space, name)
        for name in names:
            channel.send(name, Heard(len(names)), self._context.subchannel)
        return from_residues(total, space, len(names))
