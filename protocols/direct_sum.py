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

from securevfl.crypto.scheme import Floats
from securevfl.errors import ProtocolError
from securevfl.protocols.base import (
    Circle,
    Coalition,
    Declared,
    Phases,
    Reals,
    Reveal,
    Seat,
    Space,
    SumProtocol,
    SumRole,
)
from securevfl.roles import COLLECTOR, CONTRIBUTOR
from securevfl.runtime.codec import Message


class Part(Message, frozen=True):
    """H_k (n x c)."""

    values: NDArray[np.float64]


class PhasePart(Message, frozen=True):
    """Phases of one party."""

    values: NDArray[np.uint32]


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

    def coalitions(self, parties: Sequence[str]) -> dict[str, Coalition]:
        return {passive: Coalition(frozenset(parties[:1])) for passive in parties[1:]}

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
        real = isinstance(space, Reals)
        message = Part(values.astype(np.float64)) if real else PhasePart(values.astype(np.uint32))
        self._seat.channel.send(self._seat.collector, message, self._seat.lane)  # 1

    def collect(self, shape: tuple[int, ...], space: Space) -> NDArray[Any]:
        kind: type[Part] | type[PhasePart] = Part if isinstance(space, Reals) else PhasePart
        total: NDArray[Any] = np.zeros(shape, np.float64 if isinstance(space, Reals) else np.uint32)
        for passive in self._seat.contributors:
            values = self._seat.channel.recv(passive, kind, self._seat.lane).values  # 1
            check_shape(passive, values, shape)
            total += values
        return total & np.uint32(2**space.bits - 1) if isinstance(space, Circle) else total


def check_shape(sender: str, values: NDArray[Any], shape: tuple[int, ...]) -> None:
    """ProtocolError unless the part has the agreed shape and is finite."""
    if values.shape != shape:
        raise ProtocolError(f"{sender} was expected to send a part of shape {shape}, {values.shape} came")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ProtocolError(f"{sender} sent a part with NaN or infinite values; lower its step size")
