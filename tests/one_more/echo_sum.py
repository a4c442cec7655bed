"""A sum in the clear that tells each contributor how many parts have come: one more sum, in one file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.roles import COLLECTOR, CONTRIBUTOR
from securevfl.protocols.declared import Declared, Phases, Reveal, Space
from securevfl.protocols.seat import Seat
from securevfl.protocols.sums.base import SumProtocol, SumRole, part_of_sum
from securevfl.protocols.sums.sum_masks import from_residues, pack, residue_type, to_residues, unpack
from securevfl.runtime.channel import Telling
from securevfl.runtime.codec import Message


class EchoPart(Telling, frozen=True):
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

    def role(self, seat: Seat) -> SumRole:
        return EchoRole(seat)

    def declares(self, contributors: Sequence[str]) -> list[Declared]:
        return [
            Declared(EchoPart, CONTRIBUTOR, COLLECTOR, Reveal("plain", "the sender's part")),
            Declared(Heard, COLLECTOR, CONTRIBUTOR, Reveal("public")),
        ]

    def coalitions(self, parties: Sequence[str]) -> dict[str, frozenset[str]]:
        return {name: frozenset(parties[:1]) for name in parties[1:]}

    @property
    def hides_parts(self) -> bool:
        return False


class EchoRole(SumRole):
    """Either side."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat

    def contribute(self, values: Floats | Phases, space: Space) -> None:
        told = part_of_sum(self._seat, values, space, (self._seat.me,))
        part = to_residues(values, space, len(self._seat.contributors))
        self._seat.channel.send(self._seat.collector, EchoPart(pack(part)), self._seat.lane, told=told)
        self._seat.channel.recv(self._seat.collector, Heard, self._seat.lane)

    def collect(self, shape: tuple[int, ...], space: Space) -> NDArray[Any]:
        channel, names = self._seat.channel, self._seat.contributors
        total = np.zeros(shape, residue_type(space))
        for name in names:
            total += unpack(channel.recv(name, EchoPart, self._seat.lane).residues, shape, space, name)
        for name in names:
            channel.send(name, Heard(len(names)), self._seat.lane)
        return from_residues(total, space, len(names))
