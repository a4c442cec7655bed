"""What a job says of a training on shares."""

from __future__ import annotations

import math
from typing import ClassVar

from pydantic import Field, field_validator

from securevfl.protocols.base import MessageProtocol

__all__ = ["Shares"]


class Shares(MessageProtocol):
    """Weights, sums, residuals and gradients stay shared, so that a run opens sizes and the agreed scores alone.

    partner: which party holds shares beside the one with labels; the one with the most columns unless named.
    table_bits, step: the loss is read from a table of 2^table_bits entries that are `step` apart, a power of two; by
    default 1 for classes and 1/4 for numbers. It covers sums up to (2^(table_bits - 1) - 1) step on either side.
    clip: columns are cut off at so many deviations. chunk: for how many epochs work is done ahead at a time.
    """

    name: ClassVar[str] = "shares"
    partner: str | None = None
    table_bits: int = Field(default=6, ge=3, le=8)
    step: float | None = Field(default=None, gt=0)
    clip: float = Field(default=8.0, ge=1, le=64)
    chunk: int = Field(default=8, ge=1)

    @field_validator("step")
    @classmethod
    def _check_step(cls, value: float | None) -> float | None:
        if value is not None and (math.frexp(value)[0] != 0.5 or not 2.0**-6 <= value <= 4):
            raise ValueError("must be a power of two from 1/64 to 4; choose one of these")
        return value

    @property
    def encrypts(self) -> bool:
        return True

    @property
    def strength(self) -> str:
        return (
            "RLWE ring N=4096 (HomomorphicEncryption.org: 128 bits), computational Diffie-Hellman on Ed25519, "
            "ChaCha20, AES as a correlation-robust hash"
        )

    def step_bits(self, *, classifies: bool) -> int:
        """log2 of the distance between two entries."""
        step = self.step if self.step is not None else 1.0 if classifies else 0.25
        return math.frexp(step)[1] - 1
