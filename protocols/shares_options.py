"""What a job says of a training on shares."""

from __future__ import annotations

import math
from typing import ClassVar

from pydantic import Field, field_validator

from securevfl.protocols.base import MessageProtocol

__all__ = ["Shares"]


class Shares(MessageProtocol):
    """Weights, sums, residuals and gradients stay shared, so that a run opens sizes and the agreed scores alone.

    The table of the loss covers sums up to (2^(table_bits - 1) - 1) step on either side.
    """

    name: ClassVar[str] = "shares"
    partner: str | None = None
    """Who holds shares beside the party with labels; the party with the most columns if left out."""
    table_bits: int = Field(default=6, ge=3, le=8)
    """The loss is read from a table of 2^table_bits entries."""
    step: float | None = Field(default=None, gt=0)
    """The distance of two entries, a power of two; 1 for classes and 1/4 for numbers if left out."""
    clip: float = Field(default=8.0, ge=1, le=64)
    """Scaled columns are cut off at this size."""
    chunk: int = Field(default=8, ge=1)
    """For how many epochs work is done ahead at a time."""

    open_weights: tuple[str, ...] = ()
    """Parties that are told their own weights at the end; each can then rank the labels by itself."""

    scores_to: str | None = None
    """Who is told the scores of new rows; the party with labels if left out. Held-out rows are scored for that one."""

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
