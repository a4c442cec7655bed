"""What all message protocols have in common that work on ciphertexts of an engine which the job names."""

from __future__ import annotations

from typing import Self

from securevfl.crypto.scheme import LinearScheme
from securevfl.protocols.base import MessageProtocol
from securevfl.protocols.engines import AnyEngine
from securevfl.protocols.seat import Seat


class Encrypted(MessageProtocol):
    """Its keys and calls are those of `engine`."""

    engine: AnyEngine

    def linear(self, seat: Seat) -> LinearScheme:
        """Return the engine's scheme for J^T [[g]], its calls booked at this party."""
        return seat.meter.linear(self.engine.scheme())

    @property
    def quick(self) -> Self:
        return self.model_copy(update={"engine": self.engine.quick})

    @property
    def encrypts(self) -> bool:
        return True

    @property
    def pooled(self) -> bool:
        return self.engine.pooled

    @property
    def strength(self) -> str:
        return self.engine.assumption
