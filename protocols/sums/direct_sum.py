"""Direct sum: every contributor sends its part to the collector in the clear (FedBCD 2019, Algorithm 1).

1. contributor k -> collector   H_k     in the clear
   collector                    adds up

The collector learns each H_k, n x c numbers a round. As theta_k moves from round to round, these span the columns
X_k after d_k rounds or earlier: columns of few values can then be read, and a few known rows give all others (the leak
`columns`; `securevfl.disclosure.exposure` says from when on). Contributors learn nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.roles import COLLECTOR, CONTRIBUTOR
from securevfl.errors import ProtocolError
from securevfl.protocols.declared import Circle, Declared, Phases, Reals, Reveal, Space
from securevfl.protocols.seat import Seat
from securevfl.protocols.sums.base import SumProtocol, SumRole, part_of_sum
from securevfl.runtime.channel import Telling
from securevfl.runtime.codec import Numbers, carried, check_bits


class Part(Telling, frozen=True):
    """The message with one party's part H_k (n x c), as it is."""

    values: Numbers


class PhasePart(Telling, frozen=True):
    """The message with one party's phases of random features, as they are, in words of as many bits."""

    values: NDArray[np.uint32 | np.uint16]


class DirectSum(SumProtocol):
    """Parts in the clear: the least work, and the active party sees each part."""

    name: ClassVar[str] = "direct"

    def role(self, seat: Seat) -> SumRole:
        return DirectSumRole(seat)

    def declares(self, contributors: Sequence[str]) -> list[Declared]:
        part = Reveal(
            "plain", "the sender's forward outputs H_k on the rows asked for, which over a run span its columns"
        )
        phases = Reveal("plain", "the sender's phases w^T x_k")
        return [
            Declared(Part, CONTRIBUTOR, COLLECTOR, part, space=Reals),
            Declared(PhasePart, CONTRIBUTOR, COLLECTOR, phases, space=Circle),
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
    def __init__(self, seat: Seat) -> None:
        self._seat = seat

    def contribute(self, values: Floats | Phases, space: Space) -> None:
        if isinstance(space, Reals):
            message: Part | PhasePart = Part(carried(values, space.bits))
        else:
            message = PhasePart(values.astype(np.uint16 if space.bits == 16 else np.uint32))
        told = part_of_sum(self._seat, values, space, (self._seat.me,))
        self._seat.channel.send(self._seat.collector, message, self._seat.lane, told=told)  # 1

    def collect(self, shape: tuple[int, ...], space: Space) -> NDArray[Any]:
        kind: type[Part] | type[PhasePart] = Part if isinstance(space, Reals) else PhasePart
        total: NDArray[Any] = np.zeros(shape, np.float64 if isinstance(space, Reals) else np.uint32)
        for passive in self._seat.contributors:
            values = self._seat.channel.recv(passive, kind, self._seat.lane).values  # 1
            check_shape(passive, values, shape)
            check_bits(passive, values, space.bits)
            total += values
        return total & np.uint32(2**space.bits - 1) if isinstance(space, Circle) else total


def check_shape(sender: str, values: NDArray[Any], shape: tuple[int, ...]) -> None:
    """ProtocolError unless the part has the agreed shape and is finite."""
    if values.shape != shape:
        raise ProtocolError(f"{sender} was expected to send a part of shape {shape}, {values.shape} came")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ProtocolError(f"{sender} sent a part with NaN or infinite values; lower its step size")
