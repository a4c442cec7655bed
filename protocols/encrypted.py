"""What all message protocols have in common that work on ciphertexts of an engine which the job names."""

from __future__ import annotations

from typing import Self

from securevfl.protocols.base import MessageProtocol
from securevfl.protocols.engines import AnyEngine


class Encrypted(MessageProtocol):
    """Its keys and calls are those of `engine`."""

    engine: AnyEngine

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
