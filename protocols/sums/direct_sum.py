"""Direct sum: every contributor sends its part to the collector in the clear (FedBCD 2019, Algorithm 1).

1. contributor k -> collector   H_k     in the clear
   collector                    adds up

The collector learns each H_k, n x c numbers a round. As theta_k moves from round to round, these span the columns
X_k after d_k rounds or earlier: columns of few values can then be read, and a few known rows give all others (the
leak `columns`; `securevfl.disclosure.column_recovery` says from when on). Contributors learn nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.roles import COLLECTOR, CONTRIBUTOR
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.number_spaces import Circle, Phases, Reals, Space
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.sums.base import SumProtocol, SumRole, check_shape, part_of_sum
from securevfl.runtime.codec import Numbers, carried, check_bits
from securevfl.runtime.disclosure_gate import DisclosingMessage


class Part(DisclosingMessage, frozen=True):
    """The message with one party's part H_k (n x c), as it is."""

    values: Numbers


class PhasePart(DisclosingMessage, frozen=True):
    """The message with one party's phases of random features, as they are, in words of as many bits."""

    values: NDArray[np.uint32 | np.uint16]


class DirectSum(SumProtocol):
    """Parts in the clear: the least work, and the active party sees each part."""

    name: ClassVar[str] = "direct"

    def role(self, context: PartyContext) -> SumRole:
        return DirectSumRole(context)

    def declares(self, contributors: Sequence[str]) -> list[MessageDeclaration]:
        part = Reveal(
            "plain", "the sender's forward outputs H_k on the rows asked for, which over a run span its columns"
        )
        phases = Reveal("plain", "the sender's phases w^T x_k")
        return [
            MessageDeclaration(Part, CONTRIBUTOR, COLLECTOR, part, space=Reals),
            MessageDeclaration(PhasePart, CONTRIBUTOR, COLLECTOR, phases, space=Circle),
        ]

    def coalitions(self, parties: Sequence[str]) -> dict[str, frozenset[str]]:
        return {passive: frozenset(parties[:1]) for passive in parties[1:]}

    @property
    def strength(self) -> str:
        return "none: parts are sent in the clear"

    @property
    def hides_parts(self) -> bool:
        return False


class DirectSumRole(SumRole):
    def __init__(self, context: PartyContext) -> None:
        self._context = context

    def contribute(self, values: Floats | Phases, space: Space) -> None:
        if isinstance(space, Reals):
            message: Part | PhasePart = Part(carried(values, space.bits))
        else:
            message = PhasePart(values.astype(np.uint16 if space.bits == 16 else np.uint32))
        permit = part_of_sum(self._context, values, space, (self._context.me,))
        self._context.channel.send(self._context.collector, message, self._context.subchannel, permit=permit)  # 1

    def collect(self, shape: tuple[int, ...], space: Space) -> NDArray[Any]:
        kind: type[Part] | type[PhasePart] = Part if isinstance(space, Reals) else PhasePart
        total: NDArray[Any] = np.zeros(shape, np.float64 if isinstance(space, Reals) else np.uint32)
        for passive in self._context.contributors:
            values = self._context.channel.recv(passive, kind, self._context.subchannel).values  # 1
            check_shape(passive, values, shape)
            check_bits(passive, values, space.bits)
            total += values
        return total & np.uint32(2**space.bits - 1) if isinstance(space, Circle) else total
